// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "reshard/base/result.h"
#include "reshard/io/open_model.h"

namespace reshard {

/// The values of the tensors that a model decodes (Model::decoded), all of them, in a temporary
/// file without a name: memory that the system may write to the disk, and that is gone with this
/// object.
class ComputedWeights {
 public:
  /// Decodes with one thread per core. Errors: those of check_codes(); no room in the folder for
  /// temporary files (TMPDIR, else /tmp), which the message names with the bytes that it needs.
  static Result<ComputedWeights> compute(const Model& model);

  ComputedWeights() = default;
  ComputedWeights(ComputedWeights&& other) noexcept;
  ComputedWeights& operator=(ComputedWeights&& other) noexcept;
  ~ComputedWeights();

  /// The tensor's values, row-major; empty if the model does not decode it.
  std::span<const std::byte> values_of(const std::string& tensor) const;

 private:
  struct Tensor {
    Index offset = 0, bytes = 0;
  };
  Result<> map_file();
  void compute_all(const Model& model);

  std::map<std::string, Tensor> tensors_;
  std::byte* data_ = nullptr;
  Index size_ = 0;
};

}  // namespace reshard
