// SPDX-License-Identifier: Apache-2.0
#include "reshard/sharding/mesh.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard {
namespace {
constexpr Index kMaxRanks = Index{1} << 20;
}

Result<Mesh> Mesh::make(std::vector<Axis> fastest_first, Rank first) {
  if (fastest_first.size() > kMaxDims)
    return fail(Code::invalid_argument,
                fmt::format("a mesh has at most {} axes, not {}", kMaxDims, fastest_first.size()));
  if (first.value() < 0 || first.value() >= kMaxRanks)
    return fail(Code::invalid_argument, fmt::format("first rank {} must be between 0 and {}",
                                                    first.value(), kMaxRanks - 1));
  Mesh mesh;
  mesh.first_ = first;
  for (const Axis& axis : fastest_first) {
    if (axis.size < 1)
      return fail(Code::invalid_argument,
                  fmt::format("{}={} must be 1 or more", axis.name, axis.size));
    if (mesh.axis(axis.name) >= 0)
      return fail(Code::invalid_argument, fmt::format("axis '{}' is named twice", axis.name));
    if (axis.size > kMaxRanks || mesh.size_ * axis.size > kMaxRanks - first.value())
      return fail(Code::invalid_argument,
                  fmt::format("the mesh has more than {} ranks", kMaxRanks));
    mesh.strides_.push_back(mesh.size_);
    mesh.size_ *= axis.size;
    mesh.axes_.push_back(axis);
  }
  return mesh;
}

Result<Mesh> Mesh::from_order(std::string_view order, const std::vector<Axis>& sizes, Rank first) {
  std::vector<Axis> axes;
  for (std::size_t at = 0; at <= order.size();) {
    const std::size_t end = std::min(order.find('-', at), order.size());
    axes.push_back({std::string(order.substr(at, end - at)), 1});
    at = end + 1;
  }
  for (const Axis& given : sizes) {
    auto it =
        std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.name == given.name; });
    if (it != axes.end()) {
      it->size = given.size;
    } else if (given.size != 1) {
      return fail(Code::invalid_argument,
                  fmt::format("order '{}' does not name '{}', which has size {}", order, given.name,
                              given.size));
    }
  }
  return make(std::move(axes), first);
}

int Mesh::axis(std::string_view name) const {
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == name) return static_cast<int>(i);
  return -1;
}

Rank Mesh::rank_at(const Dims& coordinates) const {
  Index r = first_.value();
  for (int i = 0; i < coordinates.size(); ++i) r += coordinates[i] * strides_[i];
  return Rank(static_cast<Rank::rep>(r));
}

std::string to_string(const Mesh& mesh) {
  std::string text = "{";
  for (const Axis& a : mesh.axes())
    text += fmt::format("{}{}:{}", text.size() > 1 ? ", " : "", a.name, a.size);
  return text + fmt::format("}} from rank {}", mesh.first().value());
}

}  // namespace reshard
