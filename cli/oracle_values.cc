// SPDX-License-Identifier: Apache-2.0
#include "cli/oracle_values.h"

#include <fmt/format.h>

#include <atomic>
#include <vector>

#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/transform/oracle.h"

namespace reshard::cli {
namespace {

struct Local {
  Rank rank;
  SlotId slot;
};

/// Calls visit(rank, fragment, oracle of its tensor, first byte of the local tensor) for every
/// fragment, on all threads.
template <class Visit>
Result<> for_each_fragment(const RankBuffers& buffers, std::uint64_t seed, int threads,
                           const char* phase, const Progress& progress, Visit&& visit) {
  const ModelLayout& layout = buffers.layout();
  std::vector<Local> locals;
  Index total = 0;
  for (Rank r : buffers.ranks()) {
    for (SlotId slot : layout.slots_of(r)) {
      locals.push_back({r, slot});
      total += buffers.bytes(r, slot);
    }
  }
  ProgressMeter meter(phase, total, progress);
  std::atomic<std::size_t> next{0};
  WorkerPool pool(threads);
  auto body = [&](int worker) {
    for (std::size_t i = next++; i < locals.size(); i = next++) {
      const auto [r, slot] = locals[i];
      for (const Fragment& f : layout.local(slot, r).fragments) {
        const CanonicalTensor& t = layout.model()[f.tensor];
        const Oracle oracle(t.name, t.shape, t.dtype, seed, OracleKind::bits);
        if (auto visited = visit(r, f, oracle, buffers.at(r, slot)); !visited)
          meter.fail_with(std::move(visited).error());
      }
      if (!meter.add(worker, buffers.bytes(r, slot))) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

}  // namespace

Result<> fill_from_oracle(const RankBuffers& buffers, std::uint64_t seed, int threads,
                          const Progress& progress) {
  return for_each_fragment(
      buffers, seed, threads, "fill", progress,
      [](Rank, const Fragment& f, const Oracle& oracle, std::byte* data) -> Result<> {
        oracle.fill(f.box, f.where, data);
        return {};
      });
}

Result<> check_against_oracle(const RankBuffers& buffers, std::uint64_t seed, int threads,
                              const Progress& progress) {
  const ModelLayout& layout = buffers.layout();
  return for_each_fragment(
      buffers, seed, threads, "check", progress,
      [&](Rank r, const Fragment& f, const Oracle& oracle, std::byte* data) -> Result<> {
        const auto wrong = oracle.check(f.box, f.where, data);
        if (!wrong) return {};
        return fail(Code::corrupt,
                    fmt::format("rank {}, local tensor '{}': element of tensor '{}' {}", r.value(),
                                layout.slot(f.slot).name, layout.model()[f.tensor].name, *wrong));
      });
}

}  // namespace reshard::cli
