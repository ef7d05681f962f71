// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <tuple>

#include "reshard/exec/copy_units.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/plan/moves.h"
#include "reshard/transform/copy.h"

namespace reshard {
namespace {

constexpr Index kUnitBytes = Index{4} << 20;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// True for slices of rows that come from packed sources: they are written side by side.
bool gathers(const StridedCopy& copy) {
  if (copy.num_loops == 0) return false;
  const auto& inner = copy.loops[static_cast<std::size_t>(copy.num_loops - 1)];
  return inner.src_stride == copy.run_bytes && inner.dst_stride != copy.run_bytes;
}

/// The tensor whose rows decide which copies run together: for gathers the destination, so that a
/// row is written once; else the source, so that the slices many destinations take are read once.
std::tuple<bool, Rank, SlotId> tensor_of(const Move& m) {
  if (gathers(m.copy)) return {true, m.dst, m.dst_slot};
  return {false, m.src, m.src_slot};
}

std::pair<int, Index> place_of(const Move& m) {
  return {m.copy.num_loops, gathers(m.copy) ? m.copy.dst_offset : m.copy.src_offset};
}

Result<std::vector<Move>> all_moves(const Planner& planner, const RankBuffers& target) {
  std::vector<Move> moves;
  for (Rank r : target.ranks()) {
    std::vector<Transfer> deliveries;
    planner.for_each_delivery(r, [&](const Transfer& t) { deliveries.push_back(t); });
    const auto mine = RESHARD_TRY(moves_of(planner, deliveries));
    moves.insert(moves.end(), mine.begin(), mine.end());
  }
  std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::pair(tensor_of(a), place_of(a)) < std::pair(tensor_of(b), place_of(b));
  });
  return moves;
}

Error missing(const char* side, const ModelLayout& layout, Rank r, SlotId slot) {
  return {Code::invalid_argument,
          fmt::format("{} buffer of local tensor '{}' on rank {} is not set", side,
                      layout.slot(slot).name, r.value())};
}

}  // namespace

struct DirectRefit::State {
  State(DirectOptions o) : options(std::move(o)), pool(options.threads) {}
  DirectOptions options;
  WorkerPool pool;
  CopyUnits units;
  Index bytes = 0, copies = 0;
};

DirectRefit::DirectRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
DirectRefit::DirectRefit(DirectRefit&&) noexcept = default;
DirectRefit& DirectRefit::operator=(DirectRefit&&) noexcept = default;
DirectRefit::~DirectRefit() = default;

Result<DirectRefit> DirectRefit::prepare(const Planner& planner, const RankBuffers& source,
                                         const RankBuffers& target, DirectOptions options) {
  const auto moves = RESHARD_TRY(all_moves(planner, target));
  std::vector<CopyTask> tasks;
  std::vector<std::size_t> groups;
  auto state = std::make_unique<State>(std::move(options));
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const Move& m = moves[i];
    const std::byte* from = source.at(m.src, m.src_slot);
    std::byte* to = target.at(m.dst, m.dst_slot);
    if (from == nullptr)
      return tl::unexpected(missing("source", planner.source(), m.src, m.src_slot));
    if (to == nullptr)
      return tl::unexpected(missing("target", planner.target(), m.dst, m.dst_slot));
    const bool same = i > 0 && tensor_of(moves[i - 1]) == tensor_of(m);
    groups.push_back(i == 0 ? 0 : groups.back() + (same ? 0 : 1));
    tasks.push_back({m.copy, from, to, m.conversion});
    state->bytes += m.copy.bytes();
  }
  state->copies = static_cast<Index>(tasks.size());
  state->units = make_units(tasks, groups, kUnitBytes);
  return DirectRefit(std::move(state));
}

Result<RefitReport> DirectRefit::run() {
  State& s = *state_;
  ProgressMeter meter("refit", s.bytes, s.options.progress, s.options.deadline);
  std::atomic<std::size_t> next{0};
  const auto start = Clock::now();
  auto body = [&](int worker) {
    for (std::size_t u = next++; u < s.units.size(); u = next++) {
      const std::span<const CopyTask> all(s.units.tasks);
      run_copies(all.subspan(s.units.first[u], s.units.first[u + 1] - s.units.first[u]),
                 CopyHint::streaming);
      if (!meter.add(worker, s.units.bytes[u])) break;
    }
    copy_fence();
  };
  s.pool.run(body);
  const double seconds = seconds_since(start);
  RESHARD_TRY(meter.finish());
  return RefitReport{seconds, s.bytes, s.copies};
}

Result<double> DirectRefit::plain_copy_seconds(Index most_bytes) const {
  State& s = *state_;
  const Index share = std::max<Index>(1, std::min(s.bytes, most_bytes) / s.pool.size());
  auto from = RESHARD_TRY(HostBuffer::allocate(share * s.pool.size(), {s.pool.size()}));
  auto to = RESHARD_TRY(HostBuffer::allocate(share * s.pool.size(), {s.pool.size()}));
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    auto body = [&](int worker) {
      std::byte* dst = to.data() + share * worker;
      const std::byte* src = from.data() + share * worker;
      if (round % 2 == 0) {
        std::memcpy(dst, src, static_cast<std::size_t>(share));
      } else {
        copy_bytes(dst, src, share, CopyHint::streaming);
        copy_fence();
      }
    };
    const auto start = Clock::now();
    s.pool.run(body);
    const double seconds = seconds_since(start);
    best = round == 0 ? seconds : std::min(best, seconds);
  }
  return best * static_cast<double>(s.bytes) / static_cast<double>(share * s.pool.size());
}

}  // namespace reshard
