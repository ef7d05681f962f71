// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/moves.h"

#include <algorithm>
#include <tuple>

#include "reshard/plan/locate.h"

namespace reshard {
namespace {

/// The copy of a box, with a conversion of its values.
Result<StridedCopy> copy_between(const Conversion& conversion, const Dims& shape,
                                 const Strided& src, const Strided& dst) {
  const int from = bits(conversion.from.dtype), to = bits(conversion.to.dtype);
  if (!conversion.converts()) return make_copy(shape, src, dst, to);
  return make_widening_copy(shape, src, dst, from / 8, to / 8);
}

auto order(const Move& m) {
  return std::tuple(m.src, m.src_slot, m.dst, m.dst_slot, m.copy.dst_offset, m.copy.src_offset);
}

bool same_loops(const StridedCopy& a, const StridedCopy& b, int from = 0) {
  if (a.num_loops != b.num_loops) return false;
  for (int i = from; i < a.num_loops; ++i)
    if (!(a.loops[static_cast<std::size_t>(i)] == b.loops[static_cast<std::size_t>(i)]))
      return false;
  return true;
}

/// Merges `b` into `a` if it continues `a` at the same distance on both sides: after its run, or
/// after the last iteration of its outermost loop.
bool absorb(StridedCopy& a, const StridedCopy& b) {
  const Index src = b.src_offset - a.src_offset, dst = b.dst_offset - a.dst_offset;
  if (src == a.source_bytes(a.run_bytes) && dst == a.run_bytes && same_loops(a, b)) {
    a.run_bytes += b.run_bytes;
    return true;
  }
  if (a.num_loops == 0 || a.run_bytes != b.run_bytes || !same_loops(a, b, 1)) return false;
  auto& outer = a.loops[0];
  const auto& next = b.loops[0];
  if (outer.src_stride != next.src_stride || outer.dst_stride != next.dst_stride) return false;
  if (src != outer.count * outer.src_stride || dst != outer.count * outer.dst_stride) return false;
  outer.count += next.count;
  return true;
}

/// True if `next` directly follows `last` on both sides.
bool follows(const PairPiece& last, const PairPiece& next) {
  const auto one_run = [](const Packing& a, const Packing& b) {
    return a.slot == b.slot && a.in_one_run() && b.in_one_run() &&
           a.copy.src_offset + a.copy.run_bytes == b.copy.src_offset;
  };
  return one_run(last.src, next.src) && one_run(last.dst, next.dst);
}

}  // namespace

void coalesce(std::vector<Move>& sorted) {
  std::size_t kept = 0;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    Move& last = sorted[kept];
    const Move& next = sorted[i];
    const bool one_pair = last.src == next.src && last.dst == next.dst &&
                          last.src_slot == next.src_slot && last.dst_slot == next.dst_slot;
    if (!one_pair || !absorb(last.copy, next.copy)) sorted[++kept] = next;
  }
  if (!sorted.empty()) sorted.resize(kept + 1);
}

Result<std::vector<Move>> copy_ops(const Planner& planner, std::span<const Transfer> deliveries) {
  std::vector<Move> out;
  for (const Transfer& t : deliveries) {
    const Located from = first_location(planner.source(), t.tensor, t.src, t.box);
    const Conversion conversion = planner.conversion(t.tensor);
    Result<> status;
    for_each_location(planner.target(), t.tensor, t.dst, t.box, [&](const Located& to) {
      auto copy = copy_between(conversion, t.box.shape(), from.where, to.where);
      if (!copy) {
        status =
            tl::unexpected(std::move(copy).error().in(planner.source().model()[t.tensor].name));
      } else {
        out.push_back({t.src, t.dst, from.slot, to.slot, *copy, conversion});
      }
    });
    RESHARD_TRY(std::move(status));
  }
  std::sort(out.begin(), out.end(),
            [](const Move& a, const Move& b) { return order(a) < order(b); });
  coalesce(out);
  return out;
}

Result<Packing> packing_of(const Planner& planner, const Transfer& t, bool is_send) {
  const bool in_source = is_send && t.relay.hop == 0;
  const ModelLayout& layout = in_source ? planner.source() : planner.target();
  const Located local = first_location(layout, t.tensor, is_send ? t.src : t.dst, t.box);
  const Conversion mine{layout.form(t.tensor), planner.wire_form(t.tensor)};
  const Strided row_major_box{0, row_major(t.box.shape())};
  return Packing{local.slot,
                 RESHARD_TRY(copy_between(mine, t.box.shape(), local.where, row_major_box)), mine};
}

Result<std::vector<PairPiece>> pieces_of(const Planner& planner,
                                         std::span<const Transfer> transfers) {
  std::vector<PairPiece> out;
  for (const Transfer& t : transfers) {
    PairPiece next;
    next.src = RESHARD_TRY(packing_of(planner, t, true));
    next.dst = RESHARD_TRY(packing_of(planner, t, false));
    next.bytes = next.src.copy.bytes();
    next.converts = planner.conversion(t.tensor).converts();
    if (out.empty() || !follows(out.back(), next)) {
      out.push_back(next);
      continue;
    }
    out.back().bytes += next.bytes;
    out.back().src.copy.run_bytes += next.bytes;
    out.back().dst.copy.run_bytes += next.bytes;
  }
  return out;
}

Result<std::vector<Move>> duplicate_copies(const Planner& planner,
                                           std::span<const Transfer> deliveries) {
  std::vector<Move> out;
  for (const Transfer& t : deliveries) {
    std::vector<Located> places;
    for_each_location(planner.target(), t.tensor, t.dst, t.box,
                      [&](const Located& to) { places.push_back(to); });
    for (std::size_t i = 1; i < places.size(); ++i) {
      const StoredForm form = planner.target().form(t.tensor);
      const auto copy =
          RESHARD_TRY(make_copy(t.box.shape(), places[0].where, places[i].where, bits(form.dtype)));
      out.push_back({t.dst, t.dst, places[0].slot, places[i].slot, copy, {form, form}});
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Move& a, const Move& b) { return order(a) < order(b); });
  coalesce(out);
  return out;
}

}  // namespace reshard
