// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/checkpoint/safetensors.h"

namespace reshard::testing {

/// A tensor to write, row-major.
struct DcpTensor {
  TensorSpec spec;
  std::string bytes;
  Index rows = 0;  ///< of each piece; 0: it is one piece.
};

/// A tensor of bytes that depend on `seed` alone.
DcpTensor dcp_tensor(std::string name, DType dtype, const Dims& shape, unsigned seed);

/// Writes a checkpoint of torch.distributed.checkpoint into an existing folder: `.metadata` and one
/// file, and another one for the objects, which are None. Replaces an earlier one. Fails the test
/// if it cannot.
void write_dcp_folder(const std::string& folder, const std::vector<DcpTensor>& tensors,
                      const std::vector<std::string>& objects = {});

}  // namespace reshard::testing
