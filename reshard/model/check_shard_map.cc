// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/model_layout.h"

namespace reshard {
namespace {

/// The boxes that a fragment occupies in its row-major local tensor; local dimensions it does not
/// span have size 1. One, but where it leaves gaps.
std::vector<Box> occupied(const Fragment& f, const Dims& shape) {
  const Dims strides = row_major(shape);
  std::array<Interval, kMaxDims> dims;
  Index rest = f.where.offset;
  for (int k = 0; k < shape.size(); ++k) {
    const Index begin = rest / strides[k];
    rest %= strides[k];
    dims[static_cast<std::size_t>(k)] = Interval{begin, begin + 1};
  }
  std::vector<Box> boxes{
      Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(shape.size())))};
  for (int i = 0; i < f.box.rank(); ++i) {
    const Index size = f.box[i].size(), stride = f.where.strides[i];
    int k = 0;
    while (k < shape.size() && (strides[k] > stride || shape[k] == 1)) ++k;
    if (size == 1 || k == shape.size() || stride % strides[k] != 0) continue;
    const Index step = stride / strides[k], runs = step == 1 ? 1 : size;
    std::vector<Box> all;
    for (const Box& box : boxes)
      for (Index run = 0; run < runs; ++run) {
        const Index begin = box[k].begin() + run * step;
        all.push_back(box.with(k, Interval{begin, begin + (step == 1 ? size : 1)}));
      }
    boxes = std::move(all);
  }
  return boxes;
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
      const std::vector<Box> here = occupied(f, local.shape);
      boxes.insert(boxes.end(), here.begin(), here.end());
      covered += f.box.volume();
      Index elements = 0;
      bool inside = true;
      for (const Box& box : here) {
        elements += box.volume();
        inside = inside && contains(Box::whole(local.shape), box);
      }
      if (elements != f.box.volume() || !inside)
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
