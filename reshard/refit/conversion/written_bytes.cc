// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/written_bytes.h"

#include <algorithm>

#include "reshard/layout/strided.h"

namespace reshard::conversion {
namespace {

/// Appends the runs of a box of a local tensor.
Result<> add_fragment(const ModelLayout& layout, const Fragment& f, std::vector<PartRows>& out) {
  if (f.box.volume() == 0) return {};
  StridedCopy copy =
      RESHARD_TRY(make_copy(f.box.shape(), f.where, f.where, bits(layout.slot(f.slot).dtype)));
  StridedCopy::Loop rows{1, copy.run_bytes, copy.run_bytes};
  if (copy.num_loops > 0) rows = copy.loops[static_cast<std::size_t>(--copy.num_loops)];
  for_each_run(copy, [&](Index, Index at, Index run) {
    const Index bytes = (rows.count - 1) * rows.dst_stride + run;
    out.push_back({f.slot, at, bytes, run, rows.dst_stride});
  });
  return {};
}

/// Appends what the local tensors of a rank have of the tensors that a plan moves.
Result<> add_moved(const Planner& planner, Rank me, std::vector<PartRows>& out) {
  const ModelLayout& target = planner.target();
  if (!target.ranks().contains(me)) return {};
  for (const SlotId slot : target.slots_of(me))
    for (const Fragment& f : target.local(slot, me).fragments)
      if (planner.moves(f.tensor)) RESHARD_TRY(add_fragment(target, f, out));
  return {};
}

}  // namespace

Result<std::vector<PartRows>> written_bytes(const RoutePlan& move, Rank me, Index unit_bytes) {
  std::vector<PartRows> out;
  const SideConversion& into = move.into.conversion;
  if (into.layout == nullptr || into.finish != nullptr) {
    RESHARD_TRY(add_moved(into.finish != nullptr ? *into.finish : move.planner, me, out));
    return out;
  }
  for (const ConvertedRows& unit : RESHARD_TRY(converted_rows(into, me, unit_bytes)))
    for (std::size_t p = 0; p < kMatrixParts; ++p) {
      const bool is_values = static_cast<MatrixPart>(p) == MatrixPart::values;
      if (is_values != into.quantises && unit.parts[p].slot.value() >= 0)
        out.push_back(unit.parts[p]);
    }
  return out;
}

std::vector<SlotId> partly_written(const SessionSide& target, Rank me,
                                   const std::vector<bool>& moves) {
  const ModelLayout &values = *target.values(), &stored = *target.stored();
  const auto is_whole = [&](const Slot& slot) {
    if (slot.padded) return false;
    for (const Section& section : slot.sections)
      for (const PlacedBox& part : section.parts)
        if (!moves[part.tensor.index()]) return false;
    return true;
  };
  std::vector<SlotId> out;
  const auto add = [&](SlotId slot, const Slot& of) {
    if (slot.value() >= 0 && (stored.slot(slot).padded || !is_whole(of)) &&
        stored.rank_set(stored.slot(slot).ranks).contains(me))
      out.push_back(slot);
  };
  if (target.quantised == nullptr) {
    if (stored.ranks().contains(me))
      for (const SlotId slot : stored.slots_of(me)) add(slot, values.slot(slot));
    return out;
  }
  for (const QuantisedLayout::Pair& pair : target.quantised->pairs)
    for (const SlotId slot : {pair.data, pair.scales, pair.factor})
      add(slot, values.slot(pair.values));
  for (std::size_t i = 0; i < target.quantised->plain.size(); ++i)
    add(target.quantised->plain[i], values.slot(SlotId(static_cast<SlotId::rep>(i))));
  std::ranges::sort(out);
  return out;
}

}  // namespace reshard::conversion
