// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// A named axis of a mesh.
struct Axis {
  std::string name;
  Index size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

/// A logical grid of the consecutive ranks [first, first + size()), with named axes.
///
/// Axes are in order from the fastest-varying one. With strides s[0] = 1, s[i+1] = s[i] *
/// size[i], rank r has coordinate ((r - first) / s[i]) mod size[i] on axis i.
class Mesh {
 public:
  Mesh() = default;

  /// Errors: `invalid_argument` unless there are at most kMaxDims axes of size 1 or more with
  /// distinct names, all ranks are below 2^20, and first >= 0.
  static Result<Mesh> make(std::vector<Axis> fastest_first, Rank first);

  /// The mesh with an order such as Megatron's "tp-cp-ep-dp-pp", fastest first. The order must name
  /// every axis with a size above 1; axes that `sizes` lacks have size 1. Errors: as make().
  static Result<Mesh> from_order(std::string_view order, const std::vector<Axis>& sizes,
                                 Rank first);

  const std::vector<Axis>& axes() const { return axes_; }
  Rank first() const { return first_; }
  Index size() const { return size_; }
  bool contains(Rank r) const { return r >= first_ && r.value() - first_.value() < size_; }
  /// The axis of this name, or -1.
  int axis(std::string_view name) const;
  /// @pre contains(r) and 0 <= axis < axes().size()
  Index coordinate(Rank r, int axis) const {
    return (r.value() - first_.value()) / strides_[axis] %
           axes_[static_cast<std::size_t>(axis)].size;
  }
  /// The rank at these coordinates, one per axis. @pre each within its axis
  Rank rank_at(const Dims& coordinates) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
  Dims strides_;
  Index size_ = 1;
  Rank first_;
};

/// "{tp:4, dp:2} from rank 8"
std::string to_string(const Mesh& mesh);

}  // namespace reshard
