// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/tensor.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"
#include "reshard/model/name_pattern.h"

namespace reshard {
namespace {

/// The number of elements of a shape; none if it is negative or overflows.
std::optional<Index> checked_volume(const Dims& shape) {
  Index v = 1;
  for (Index d : shape)
    if (d < 0 || __builtin_mul_overflow(v, d, &v)) return std::nullopt;
  return v;
}

}  // namespace

Result<TensorId> ModelSpec::add(std::string name, Dims shape, DType dtype, MergedDims merged) {
  RESHARD_TRY(check_tensor_name(name));
  const auto elements = checked_volume(shape);
  const auto bytes = elements ? bytes_of(dtype, *elements) : std::nullopt;
  Index total = 0;
  if (!bytes || __builtin_add_overflow(bytes_, *bytes, &total))
    return fail(
        Code::invalid_argument,
        fmt::format("tensor '{}': shape {} of {} is not a whole, representable number of bytes",
                    name, to_string(shape), reshard::name(dtype)));
  const TensorId id(static_cast<TensorId::rep>(tensors_.size()));
  if (!ids_.emplace(name, id).second)
    return fail(Code::invalid_argument, fmt::format("tensor '{}' is named twice", name));
  bytes_ = total;
  digest_ = mix64(digest_ ^ hash64(name, static_cast<std::uint64_t>(dtype)));
  for (Index d : shape) digest_ = mix64(digest_ + static_cast<std::uint64_t>(d));
  digest_ =
      mix64(digest_ + static_cast<std::uint64_t>(shape.size()) + (std::uint64_t{merged.bits} << 8));
  tensors_.push_back({std::move(name), shape, dtype, merged});
  return id;
}

std::optional<TensorId> ModelSpec::find(std::string_view name) const {
  const auto it = ids_.find(std::string(name));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace reshard
