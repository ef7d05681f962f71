// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "reshard/base/result.h"
#include "reshard/io/open_model.h"
#include "reshard/transform/merge.h"

namespace reshard {

/// The values of the tensors that a model decodes (Model::decoded), or into which it merges
/// adapters (Model::merged), all of them, in a temporary file without a name: memory that the
/// system may write to the disk, and that is gone with this object.
class ComputedWeights {
 public:
  /// Computes with one thread per core. Nothing is decoded of a model whose own layout holds codes
  /// as they are stored. Errors: those of check_codes(); no room in the folder for
  /// temporary files (TMPDIR, else /tmp), which the message names with the bytes that it needs.
  static Result<ComputedWeights> compute(const Model& model, const ModelLayout& own);

  ComputedWeights() = default;
  ComputedWeights(ComputedWeights&& other) noexcept;
  ComputedWeights& operator=(ComputedWeights&& other) noexcept;
  ~ComputedWeights();

  /// The tensor's values, row-major; empty if the files hold them.
  std::span<const std::byte> values_of(const std::string& tensor) const;

 private:
  struct Tensor {
    MergedTensor values;
    DType dtype;
    Index offset, bytes;
  };
  void add(const Model& model, const std::string& name, MergedTensor values);
  Result<> map_file();
  void compute_all();

  std::map<std::string, Tensor> tensors_;
  std::byte* data_ = nullptr;
  Index size_ = 0;
};

}  // namespace reshard
