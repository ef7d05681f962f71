// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/model_layout.h"

namespace reshard {
namespace {

/// The box that a fragment occupies in its row-major local tensor; local dimensions it does not
/// span have size 1.
Box occupied(const Fragment& f, const Dims& shape) {
  const Dims strides = row_major(shape);
  std::array<Interval, kMaxDims> dims;
  Index rest = f.where.offset;
  for (int k = 0; k < shape.size(); ++k) {
    const Index begin = rest / strides[k];
    rest %= strides[k];
    dims[static_cast<std::size_t>(k)] = Interval{begin, begin + 1};
  }
  for (int i = 0; i < f.box.rank(); ++i) {
    if (f.box[i].size() == 1) continue;
    for (int k = 0; k < shape.size(); ++k) {
      auto& d = dims[static_cast<std::size_t>(k)];
      if (strides[k] == f.where.strides[i] && shape[k] > 1) {
        d = Interval{d.begin(), d.begin() + f.box[i].size()};
        break;
      }
    }
  }
  return Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(shape.size())));
}

}  // namespace

Result<> check_shard_map(const ModelLayout& layout, Rank r) {
  for (SlotId id : layout.slots_of(r)) {
    const LocalTensor local = layout.local(id, r);
    const Slot& slot = layout.slot(id);
    const auto where = [&] {
      return fmt::format("{}: rank {}: local tensor '{}'", layout.name(), r.value(), slot.name);
    };
    std::vector<Box> boxes;
    Index covered = 0;
    for (const Fragment& f : local.fragments) {
      boxes.push_back(occupied(f, local.shape));
      covered += f.box.volume();
      if (boxes.back().volume() != f.box.volume() ||
          !contains(Box::whole(local.shape), boxes.back()))
        return fail(Code::invalid_argument,
                    fmt::format("{}: a fragment of '{}' reaches outside shape {}", where(),
                                layout.model()[f.tensor].name, to_string(local.shape)));
    }
    std::sort(boxes.begin(), boxes.end(), before);
    for (std::size_t i = 0; i < boxes.size(); ++i)
      for (std::size_t j = i + 1; j < boxes.size() && boxes[j][0].begin() < boxes[i][0].end(); ++j)
        if (!intersect(boxes[i], boxes[j]).empty())
          return fail(Code::invalid_argument,
                      fmt::format("{}: two fragments overlap at {}", where(),
                                  to_string(intersect(boxes[i], boxes[j]))));
    if (covered != volume(local.shape) && !slot.padded)
      return fail(
          Code::invalid_argument,
          fmt::format(
              "{}: {} of {} elements belong to no canonical tensor and are not declared padding",
              where(), volume(local.shape) - covered, volume(local.shape)));
  }
  return {};
}

}  // namespace reshard
