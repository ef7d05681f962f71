// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reshard/layout/clip.h"
#include "reshard/program/get_costs.h"
#include "reshard/program/tiles.h"

namespace reshard::program {
namespace {

/// Bytes between two checks of the deadline and the group's state.
constexpr Index kMaxTile = Index{8} << 20;

}  // namespace

StridedCopy side_by_side(const StridedCopy& copy, StridedCopy& finish) {
  StridedCopy fetch = copy;
  finish = copy;
  fetch.src_width = fetch.dst_width = 1;
  fetch.run_bytes = copy.source_bytes(copy.run_bytes);
  fetch.dst_offset = finish.src_offset = 0;
  Index inner = fetch.run_bytes;
  for (int i = copy.num_loops - 1; i >= 0; --i) {
    const auto k = static_cast<std::size_t>(i);
    fetch.loops[k].dst_stride = finish.loops[k].src_stride = inner;
    inner *= copy.loops[k].count;
  }
  return fetch;
}

namespace {

/// Returns one run from the first to the last source byte; `finish` becomes the copy from there.
StridedCopy whole_span(const StridedCopy& copy, StridedCopy& finish) {
  const Interval span = source_span(copy);
  finish = copy;
  finish.src_offset = copy.src_offset - span.begin();
  StridedCopy fetch;
  fetch.src_offset = span.begin();
  fetch.run_bytes = span.size();
  return fetch;
}

/// Drops outer loops of one iteration, whose strides have no effect.
StridedCopy without_single_turns(StridedCopy copy) {
  while (copy.num_loops > 0 && copy.loops[0].count == 1) {
    std::copy(copy.loops.begin() + 1, copy.loops.begin() + copy.num_loops, copy.loops.begin());
    copy.loops[static_cast<std::size_t>(--copy.num_loops)] = {};
  }
  return copy;
}

/// A part of a copy, and how it is read: into its place, or into staging first.
struct PartRead {
  StridedCopy fetch, finish;
  bool staged = false;
};

/// Cuts the copy until each part is read into its place or fits into `most` bytes of staging,
/// whichever is cheaper, and calls f(part).
template <class F>
void for_each_part(const StridedCopy& whole, bool converts, Index most, F&& f) {
  const StridedCopy copy = without_single_turns(whole);
  if (copy.bytes() == 0) return;
  const bool in_runs = !converts && (copy.num_loops == 0 || copy.run_bytes >= kLongRun ||
                                     cost_of_get(copy) >= cost_of_runs(copy));
  if (in_runs && copy.bytes() <= kMaxTile) return f(PartRead{copy, {}, false});
  const bool sweeps = cost_of_sweep(copy) < cost_of_runs(copy);
  if (!in_runs && (sweeps || converts)) {
    PartRead part;
    part.staged = true;
    part.fetch = sweeps ? whole_span(copy, part.finish) : side_by_side(copy, part.finish);
    if (part.fetch.bytes() <= most) return f(part);
  }
  // A part may be dense even if the whole is not.
  for (const Index half : {0, 1}) for_each_part(part_of_copy(copy, half, 2), converts, most, f);
}

/// Appends the reads of one rank as tiles.
class GetTiles {
 public:
  GetTiles(Builder& builder, const std::vector<StepId>& waits) : builder_(builder), waits_(waits) {}

  void add(const ProgramPiece& piece, const PartRead& part) {
    if (part.staged) return add_staged(piece, part);
    const Rank owner = builder_.buffer(piece.src).rank;
    if (filled_ > 0 && (last_ != owner || filled_ + part.fetch.bytes() > kMaxTile)) end();
    last_ = owner;
    filled_ += part.fetch.bytes();
    builder_.get({part.fetch, piece.src, piece.dst, {}});
  }

  void end() {
    if (filled_ > 0) builder_.tile(filled_, filled_, waits_);
    filled_ = 0;
  }
  Index staging() const { return staging_; }

 private:
  void add_staged(const ProgramPiece& piece, const PartRead& part) {
    end();
    builder_.get({part.fetch, piece.src, Builder::kStaging, {}});
    builder_.copy({part.finish, Builder::kStaging, piece.dst, piece.conversion}, true);
    staging_ = std::max(staging_, part.fetch.bytes());
    std::vector<StepId> waits = waits_;
    waits.insert(waits.end(), staged_.begin(), staged_.end());
    staged_.assign(1, builder_.tile(part.finish.bytes(), part.finish.bytes(), std::move(waits)));
  }

  Builder& builder_;
  const std::vector<StepId>& waits_;
  std::vector<StepId> staged_;  ///< the last tile that used staging.
  Rank last_;
  Index filled_ = 0, staging_ = 0;
};

}  // namespace

Index add_gets(Builder& builder, std::span<const ProgramPiece> pieces, Index most,
               const std::vector<StepId>& waits) {
  GetTiles tiles(builder, waits);
  for (const ProgramPiece& piece : pieces)
    for_each_part(piece.copy, piece.conversion.converts(), most,
                  [&](const PartRead& part) { tiles.add(piece, part); });
  tiles.end();
  return tiles.staging();
}

}  // namespace reshard::program
