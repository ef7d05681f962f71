// SPDX-License-Identifier: Apache-2.0
// What a plan delivers of a local tensor is found in runs of adjacent elements. Blocks take whole
// rows of a matrix, or all of it, so a run counts for the rows of blocks that it touches.
#include "reshard/program/converted/delivered_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reshard/program/compile.h"
#include "reshard/program/matrix_parts.h"

namespace reshard {
namespace {

/// Adjacent elements of a local tensor that belong to one canonical tensor.
struct Run {
  Index begin = 0, end = 0;
  TensorId tensor;
};

/// Rows of a matrix that have values of a canonical tensor.
struct Rows {
  Interval rows;
  TensorId tensor;
};

bool delivers(const SideConversion& side, TensorId id) {
  return side.delivers.empty() || side.delivers[id.index()];
}

/// Whether all canonical tensors of a local tensor are delivered.
bool delivers_all(const SideConversion& side, const Slot& slot) {
  for (const Section& section : slot.sections)
    for (const PlacedBox& part : section.parts)
      if (!delivers(side, part.tensor)) return false;
  return true;
}

/// Appends the runs of a fragment.
void add_runs(const Fragment& fragment, std::vector<Run>& out) {
  if (fragment.box.volume() == 0) return;
  struct Dim {
    Index size, stride;
  };
  std::vector<Dim> dims;
  for (int d = 0; d < fragment.box.rank(); ++d)
    if (fragment.box[d].size() > 1)
      dims.push_back({fragment.box[d].size(), fragment.where.strides[d]});
  std::ranges::sort(dims, {}, &Dim::stride);
  Index run = 1;
  auto outer = dims.begin();
  for (; outer != dims.end() && outer->stride == run; ++outer) run *= outer->size;
  Index runs = 1;
  for (auto d = outer; d != dims.end(); ++d) runs *= d->size;
  for (Index i = 0; i < runs; ++i) {
    Index rest = i, at = fragment.where.offset;
    for (auto d = outer; d != dims.end(); ++d) {
      at += rest % d->size * d->stride;
      rest /= d->size;
    }
    out.push_back({at, at + run, fragment.tensor});
  }
}

std::vector<Run> runs_of(const ModelLayout& values, SlotId slot, Rank rank) {
  std::vector<Run> runs;
  for (const Fragment& fragment : values.local(slot, rank).fragments) add_runs(fragment, runs);
  std::ranges::sort(runs, {}, &Run::begin);
  return runs;
}

/// The rows of a matrix that a run has elements of; none if it is beside the matrix.
Interval rows_of(const Run& run, const QuantBlockArea& area) {
  const Index begin = std::max<Index>(0, run.begin - area.data_offset);
  const Index last = run.end - 1 - area.data_offset;
  if (last < begin) return {};
  const bool beside = begin % area.data_row >= area.cols;
  const Index first = begin / area.data_row + (beside ? 1 : 0);
  const Index end = std::min(area.rows, last / area.data_row + 1);
  return first < end ? Interval{first, end} : Interval{};
}

/// Rows of this number share a scale or factor, or are otherwise converted at once.
Index rows_at_once(const SideConversion& side, const QuantFormat& format,
                   const QuantBlockArea& area) {
  const Index step = is_one_block(format) ? 0 : rows_per_scale(format);
  const bool all = step == 0 || (side.quantises && needs_amax(format));
  return all ? area.rows : step;
}

/// The rows of blocks that have values, ascending, by what is delivered and what is not.
std::vector<Rows> rows_with_values(const SideConversion& side, const QuantFormat& format,
                                   const QuantBlockArea& area, const std::vector<Run>& runs) {
  const Index step = rows_at_once(side, format, area);
  const Index end = area.data_offset + (area.rows - 1) * area.data_row + area.cols;
  std::vector<Rows> out;
  auto run = std::ranges::upper_bound(runs, area.data_offset, {}, &Run::end);
  for (; run != runs.end() && run->begin < end; ++run) {
    const Interval rows = rows_of(*run, area);
    if (rows.empty()) continue;
    out.push_back({Interval{rows.begin() / step * step,
                            std::min(area.rows, (rows.end() + step - 1) / step * step)},
                   run->tensor});
  }
  std::ranges::stable_sort(out, {}, [](const Rows& r) { return r.rows.begin(); });
  return out;
}

/// The name of what the rows of rows_at_once() share, for error messages.
const char* what_is_shared(const SideConversion& side, const QuantFormat& format) {
  if (side.quantises && format.tensor_factor) return "one factor";
  if (is_one_block(format)) return "one scale";
  return format.order == ScaleOrder::swizzled ? "one tile of scales" : "one block of a scale";
}

tl::unexpected<Error> mixed(const SideConversion& side, const QuantisedLayout::Pair& pair,
                            Rank rank, TensorId a, TensorId b) {
  const bool first = delivers(side, a);
  const ModelSpec& model = side.layout->values->model();
  const std::string &moves = model[first ? a : b].name, &stays = model[first ? b : a].name;
  return fail(
      Code::unsupported,
      fmt::format("local tensor '{}' of {} on rank {}: tensor '{}' is delivered and '{}' is "
                  "not, but both have {} ({}), which cannot be written for one of them alone; "
                  "deliver both or neither, or leave them unquantised",
                  side.layout->values->slot(pair.values).name, side.layout->stored->name(),
                  rank.value(), moves, stays, what_is_shared(side, pair.format),
                  to_string(pair.format)));
}

/// The delivered rows of a matrix. Errors: mixed().
Result<std::vector<Interval>> delivered_rows(const SideConversion& side,
                                             const QuantisedLayout::Pair& pair, Rank rank,
                                             const QuantBlockArea& area,
                                             const std::vector<Run>& runs) {
  std::vector<Interval> out;
  std::optional<Rows> last[2];  ///< that ends last, of what is not delivered and what is.
  for (const Rows& r : rows_with_values(side, pair.format, area, runs)) {
    const bool moves = delivers(side, r.tensor);
    if (const auto& other = last[moves ? 0 : 1]; other && r.rows.begin() < other->rows.end())
      return mixed(side, pair, rank, r.tensor, other->tensor);
    if (auto& same = last[moves ? 1 : 0]; !same || same->rows.end() < r.rows.end()) same = r;
    if (!moves) continue;
    if (out.empty() || out.back().end() < r.rows.begin())
      out.push_back(r.rows);
    else
      out.back() = Interval{out.back().begin(), std::max(out.back().end(), r.rows.end())};
  }
  return out;
}

}  // namespace

Result<std::vector<DeliveredArea>> delivered_areas(const SideConversion& side,
                                                   const QuantisedLayout::Pair& pair, Rank rank) {
  const QuantisedLayout& layout = *side.layout;
  const bool all = delivers_all(side, layout.values->slot(pair.values));
  const std::vector<Run> runs =
      all ? std::vector<Run>() : runs_of(*layout.values, pair.values, rank);
  std::vector<DeliveredArea> out;
  for (const QuantBlockArea& area : block_areas(layout, pair, rank)) {
    if (area.rows == 0 || area.cols == 0) continue;
    std::vector<Interval> rows{Interval{0, area.rows}};
    if (!all) rows = RESHARD_TRY(delivered_rows(side, pair, rank, area, runs));
    if (!rows.empty()) out.push_back({area, std::move(rows)});
  }
  return out;
}

Result<> check_delivered_areas(const SideConversion& side) {
  if (side.layout == nullptr) return {};
  const ModelLayout& values = *side.layout->values;
  for (const QuantisedLayout::Pair& pair : side.layout->pairs) {
    const Slot& slot = values.slot(pair.values);
    if (!std::ranges::binary_search(side.slots, pair.values) || delivers_all(side, slot)) continue;
    for (const Rank r : values.rank_set(slot.ranks).members())
      RESHARD_TRY(delivered_areas(side, pair, r));
  }
  return {};
}

}  // namespace reshard
