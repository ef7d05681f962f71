// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/hf/code_form.h"
#include "reshard/model/quant/codes.h"
#include "reshard/model/tensor.h"
#include "reshard/transform/decode.h"

namespace reshard::identify {

/// The tensors of a checkpoint whose weights are stored as codes, as they are after decoding.
struct DecodedTensors {
  ModelSpec tensors;  ///< "X.weight" where files have its codes, scales and zero points.
  std::map<std::string, CodedTensor> codes;    ///< by name; borrows the checkpoint's files.
  std::map<std::string, CodedWeight> weights;  ///< of AWQ, GPTQ and compressed-tensors, by name.
};

/// Finds codes and their parts by name, dtype and shape as the form stores them. @param values the
/// dtype of decoded integers; the quant_state of 4-bit weights of bitsandbytes names theirs
///
/// Errors: Code::unsupported for a part that is missing, or of another dtype or shape than the
/// codes need (both are named); Code::corrupt for a shape or a state of bitsandbytes that is
/// malformed. No other data are read. @pre checkpoint.kind() == Checkpoint::Kind::hf
Result<DecodedTensors> decoded_tensors(const ModelSpec& stored, const CodeForm& form,
                                       const Checkpoint& checkpoint, DType values);

/// The weights that are stored as codes of integers, of tensors without their data: those of ranks,
/// with the shapes of whole tensors.
struct CodedTensors {
  ModelSpec tensors;  ///< as DecodedTensors::tensors.
  std::map<std::string, CodedWeight> weights;
};

/// Finds codes and their parts by name, dtype and shape. Errors: those of decoded_tensors().
Result<CodedTensors> coded_tensors(const ModelSpec& stored, const CodeForm& form, DType values);

}  // namespace reshard::identify
