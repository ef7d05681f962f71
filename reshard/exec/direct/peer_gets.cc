// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/peer_gets.h"

#include <algorithm>

#include "reshard/layout/clip.h"
#include "reshard/program/get_costs.h"

namespace reshard::direct {
namespace {

using namespace program;

constexpr std::size_t kMostPieces = 4096;
/// Bytes between two checks of the deadline and the group's state.
constexpr Index kMostBatch = Index{8} << 20;
/// Stays in the cache between the read and the copy.
constexpr Index kMostStaging = Index{512} << 10;

/// Returns the copy that reads the runs of `copy` into adjacent places; `finish` becomes the copy
/// from there to the destination.
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
  if (!converts && (copy.num_loops == 0 || copy.run_bytes >= kLongRun)) {
    f({copy, {}, false});
    return;
  }
  const bool sweeps = cost_of_sweep(copy) < cost_of_runs(copy);
  if (sweeps || converts) {
    PartRead part;
    part.staged = true;
    part.fetch = sweeps ? whole_span(copy, part.finish) : side_by_side(copy, part.finish);
    if (part.fetch.bytes() <= most) return f(part);
  } else if (cost_of_get(copy) >= cost_of_runs(copy)) {
    f({copy, {}, false});
    return;
  }
  // A part may be dense even if the whole is not.
  for (const Index half : {0, 1}) for_each_part(part_of_copy(copy, half, 2), converts, most, f);
}

}  // namespace

Result<PeerGets> PeerGets::prepare(std::span<const Move> moves,
                                   const std::function<PeerTensor(Rank, SlotId)>& places,
                                   const std::function<std::byte*(SlotId)>& target, Rank me,
                                   Index world, Index staging_bytes) {
  PeerGets out;
  if (moves.empty()) return out;
  std::vector<const Move*> order;
  for (const Move& m : moves) order.push_back(&m);
  const auto turn = [&](const Move* m) { return (m->src.value() - me.value() + world) % world; };
  std::stable_sort(order.begin(), order.end(), [&](const Move* a, const Move* b) {
    return std::tuple(turn(a), a->src_slot, a->copy.src_offset) <
           std::tuple(turn(b), b->src_slot, b->copy.src_offset);
  });
  const Index most = std::min(staging_bytes, kMostStaging);
  Index staged = 0;
  for (const Move* m : order) {
    const PeerTensor tensor = places(m->src, m->src_slot);
    std::byte* to = target(m->dst_slot);
    StridedCopy copy = m->copy;
    copy.src_offset += tensor.offset;
    for_each_part(copy, m->conversion.converts(), most, [&](const PartRead& part) {
      out.parts_.push_back({tensor.memory,
                            part.fetch,
                            part.staged ? nullptr : to,
                            part.staged,
                            {part.finish, nullptr, to, m->conversion}});
      if (part.staged) staged = std::max(staged, part.fetch.bytes());
    });
  }
  out.staging_ = RESHARD_TRY(HostBuffer::allocate(staged, {1}));
  for (Part& part : out.parts_)
    if (part.staged) part.finish.src = part.into = out.staging_.data();
  out.batch_.reserve(kMostPieces);
  return out;
}

Result<bool> PeerGets::flush(Transport& transport, const RemoteMemory& from, ProgressMeter& meter) {
  if (batch_.empty()) return true;
  RESHARD_TRY(transport.get(from, batch_));
  batch_.clear();
  return meter.add(0, std::exchange(batched_, 0));
}

/// False if the meter says stop.
Result<bool> PeerGets::fetch(Transport& transport, const Part& part, ProgressMeter& meter) {
  Result<bool> go = true;
  for_each_run(part.fetch, [&](Index src, Index dst, Index bytes) {
    for (Index begin = 0; begin < bytes && go && *go;) {
      const Index n = std::min(bytes - begin, kMostBatch - batched_);
      batch_.push_back({static_cast<std::size_t>(src + begin),
                        {part.into + dst + begin, static_cast<std::size_t>(n)}});
      begin += n;
      batched_ += n;
      if (batch_.size() == kMostPieces || batched_ == kMostBatch)
        go = flush(transport, *part.from, meter);
    }
  });
  return go;
}

Result<> PeerGets::run(Transport& transport, ProgressMeter& meter) {
  const Part* last = nullptr;
  for (const Part& part : parts_) {
    if (last != nullptr && (part.staged || part.from != last->from))
      if (!RESHARD_TRY(flush(transport, *last->from, meter))) return {};
    last = &part;
    if (!RESHARD_TRY(fetch(transport, part, meter))) return {};
    if (!part.staged) continue;
    if (!RESHARD_TRY(flush(transport, *part.from, meter))) return {};
    run_copies({&part.finish, 1}, CopyHint::streaming);
  }
  if (last != nullptr) RESHARD_TRY(flush(transport, *last->from, meter));
  copy_fence();
  return {};
}

}  // namespace reshard::direct
