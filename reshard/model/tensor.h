// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// A whole parameter or buffer of a model, under its Hugging Face name.
///
/// If a framework addresses, say, every second row of a tensor, its index space here has one
/// dimension more than the stored tensor: [E, H, I, 2] for gate_up_proj of gpt-oss, stored as [E,
/// H, 2I]. The bytes are the same.
struct CanonicalTensor {
  std::string name;
  Dims shape;
  DType dtype = DType::bf16;
  MergedDims merged;
  /// The shape in a file.
  Dims stored_shape() const { return merged_shape(shape, merged); }
  /// A whole number: checked when the tensor was added to a ModelSpec.
  Index bytes() const { return volume(shape) * bits(dtype) / 8; }
  friend bool operator==(const CanonicalTensor&, const CanonicalTensor&) = default;
};

/// The canonical tensors of one model, in a fixed order. A TensorId is a position in it.
class ModelSpec {
 public:
  /// Adds a tensor. Errors: a name twice, more than kMaxDims dimensions, a negative dimension, a
  /// size that overflows or is not whole bytes.
  Result<TensorId> add(std::string name, Dims shape, DType dtype, MergedDims merged = {});
  /// The tensor of this name, or none.
  std::optional<TensorId> find(std::string_view name) const;

  Index size() const { return static_cast<Index>(tensors_.size()); }
  const CanonicalTensor& operator[](TensorId id) const { return tensors_[id.index()]; }
  const std::vector<CanonicalTensor>& tensors() const { return tensors_; }
  /// Total bytes of the tensors.
  Index bytes() const { return bytes_; }
  /// Equal models (names, shapes, dtypes, order) have equal digests.
  std::uint64_t digest() const { return digest_; }

 private:
  std::vector<CanonicalTensor> tensors_;
  std::unordered_map<std::string, TensorId> ids_;
  Index bytes_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace reshard
