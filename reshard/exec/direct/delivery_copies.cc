// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/delivery_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <tuple>

namespace reshard::direct {
namespace {

constexpr Index kUnitBytes = Index{4} << 20;

/// True if packed source rows are written as slices of longer destination rows.
bool gathers(const StridedCopy& copy) {
  if (copy.num_loops == 0) return false;
  const auto& inner = copy.loops[static_cast<std::size_t>(copy.num_loops - 1)];
  return inner.src_stride == copy.run_bytes && inner.dst_stride != copy.run_bytes;
}

/// The tensor whose rows decide which copies run together. For gathers, the destination, so that
/// each row is written once; else the source, so that slices for many destinations are read once.
std::tuple<bool, Rank, SlotId> tensor_of(const Move& m) {
  if (gathers(m.copy)) return {true, m.dst, m.dst_slot};
  return {false, m.src, m.src_slot};
}

std::pair<int, Index> place_of(const Move& m) {
  return {m.copy.num_loops, gathers(m.copy) ? m.copy.dst_offset : m.copy.src_offset};
}

Result<std::vector<Move>> all_moves(const Planner& planner, std::span<const Rank> destinations) {
  std::vector<Move> moves;
  for (Rank r : destinations) {
    std::vector<Transfer> deliveries;
    planner.for_each_delivery(r, [&](const Transfer& t) { deliveries.push_back(t); });
    const auto mine = RESHARD_TRY(copy_ops(planner, deliveries));
    moves.insert(moves.end(), mine.begin(), mine.end());
  }
  std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::pair(tensor_of(a), place_of(a)) < std::pair(tensor_of(b), place_of(b));
  });
  return moves;
}

}  // namespace

Error missing_memory(const char* side, const ModelLayout& layout, Rank r, SlotId slot) {
  return {Code::invalid_argument,
          fmt::format("{} buffer of local tensor '{}' on rank {} is not set", side,
                      layout.slot(slot).name, r.value())};
}

Result<DeliveryTasks> delivery_tasks(const Planner& planner, std::span<const Rank> destinations,
                                     const SourceAddress& source, const RankBuffers& target) {
  const auto moves = RESHARD_TRY(all_moves(planner, destinations));
  DeliveryTasks out;
  const Move* last = nullptr;
  for (const Move& m : moves) {
    const std::byte* from = RESHARD_TRY(source(m.src, m.src_slot));
    std::byte* to = target.at(m.dst, m.dst_slot);
    if (to == nullptr)
      return tl::unexpected(missing_memory("target", planner.target(), m.dst, m.dst_slot));
    out.bytes += m.copy.bytes();
    if (from == nullptr) {
      out.elsewhere.push_back(m);
      continue;
    }
    const bool same = last != nullptr && tensor_of(*last) == tensor_of(m);
    out.groups.push_back(last == nullptr ? 0 : out.groups.back() + (same ? 0 : 1));
    out.tasks.push_back({m.copy, from, to, m.conversion});
    last = &m;
  }
  return out;
}

Result<DeliveryCopies> delivery_copies(const Planner& planner, std::span<const Rank> destinations,
                                       const SourceAddress& source, const RankBuffers& target) {
  auto all = RESHARD_TRY(delivery_tasks(planner, destinations, source, target));
  const auto copies = static_cast<Index>(all.tasks.size() + all.elsewhere.size());
  return DeliveryCopies{make_units(all.tasks, all.groups, kUnitBytes), std::move(all.elsewhere),
                        all.bytes, copies};
}

void run_units(const CopyUnits& units, WorkerPool& pool, ProgressMeter& meter) {
  std::atomic<std::size_t> next{0};
  auto body = [&](int worker) {
    for (std::size_t u = next++; u < units.size(); u = next++) {
      run_copies(units.tasks_of(u), CopyHint::streaming);
      if (!meter.add(worker, units.bytes[u])) break;
    }
    copy_fence();
  };
  pool.run(body);
}

}  // namespace reshard::direct
