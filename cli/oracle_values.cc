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

/// Calls visit(rank, fragment, its tensor, first byte of the local tensor) for every fragment, on
/// all threads.
template <class Visit>
Result<> for_each_fragment(const RankBuffers& buffers, int threads, const char* phase,
                           const Progress& progress, Visit&& visit) {
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
      for (const Fragment& f : layout.local(slot, r).fragments)
        if (auto seen = visit(r, f, layout.model()[f.tensor], buffers.at(r, slot)); !seen)
          meter.fail_with(std::move(seen).error());
      if (!meter.add(worker, buffers.bytes(r, slot))) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

}  // namespace

Result<> fill_from_oracle(const RankBuffers& buffers, std::uint64_t seed, int threads,
                          const Progress& progress) {
  const Oracle oracle{OracleKind::bits, seed};
  const auto fill = [&](Rank, const Fragment& f, const CanonicalTensor& t, std::byte* data) {
    return oracle_fill(oracle, t.name, t.shape, t.dtype, f.box, f.where, data);
  };
  return for_each_fragment(buffers, threads, "fill", progress, fill);
}

Result<> check_against_oracle(const RankBuffers& buffers, const std::vector<bool>& which,
                              std::uint64_t seed, int threads, const Progress& progress) {
  const Oracle oracle{OracleKind::bits, seed};
  const auto check = [&](Rank r, const Fragment& f, const CanonicalTensor& t,
                         const std::byte* data) -> Result<> {
    if (!which[f.tensor.index()]) return {};
    const auto wrong =
        RESHARD_TRY(oracle_check(oracle, t.name, t.shape, t.dtype, f.box, f.where, data));
    if (!wrong) return {};
    return fail(Code::corrupt,
                fmt::format("rank {}, local tensor '{}', tensor '{}': {}", r.value(),
                            buffers.layout().slot(f.slot).name, t.name, to_string(*wrong)));
  };
  return for_each_fragment(buffers, threads, "check", progress, check);
}

}  // namespace reshard::cli
