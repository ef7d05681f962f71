// SPDX-License-Identifier: Apache-2.0
// Refits between ranks of one process, by turns with plain copies of as many bytes, and checks
// every destination element afterwards. One line for each number of threads.
//
//   refit_bench <a case, see case.h> [--threads 1,2] [--rounds N]
//
// --rounds 0 measures a round for each line on standard input until that ends (see Rounds).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "bench/case.h"
#include "bench/plain_ways.h"
#include "reshard/exec/direct.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/plan/moves.h"
#include "reshard/transform/oracle.h"

namespace reshard::bench {
namespace {

constexpr Oracle kOracle{OracleKind::bits, 1};

/// A local tensor of a rank.
struct Held {
  Rank rank;
  SlotId slot;
};

/// Calls f(canonical tensor, fragment, local tensor's first byte) for each fragment in the buffers,
/// with all cores. Errors: the first one that f returned.
template <class F>
Result<> for_each_fragment(const RankBuffers& buffers, F&& f) {
  const ModelLayout& layout = buffers.layout();
  std::vector<Held> all;
  for (const Rank r : buffers.ranks())
    for (const SlotId slot : layout.slots_of(r)) all.push_back({r, slot});
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Result<> first_error;
  auto body = [&](int) {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      std::byte* const data = buffers.at(all[i].rank, all[i].slot);
      for (const Fragment& fragment : layout.local(all[i].slot, all[i].rank).fragments) {
        Result<> done = f(layout.model()[fragment.tensor], fragment, data);
        const std::lock_guard lock(mutex);
        if (!done && first_error) first_error = std::move(done);
      }
    }
  };
  WorkerPool pool(0);
  pool.run(body);
  return first_error;
}

Result<> fill(const RankBuffers& buffers) {
  return for_each_fragment(
      buffers, [](const CanonicalTensor& t, const Fragment& f, std::byte* data) {
        return oracle_fill(kOracle, t.name, t.shape, t.dtype, f.box, f.where, data);
      });
}

/// Bytes that were compared. Errors: an element that is not the oracle's.
Result<Index> check(const RankBuffers& buffers) {
  std::atomic<Index> bytes{0};
  const auto compare = [&](const CanonicalTensor& t, const Fragment& f,
                           const std::byte* data) -> Result<> {
    const auto wrong =
        RESHARD_TRY(oracle_check(kOracle, t.name, t.shape, t.dtype, f.box, f.where, data));
    if (wrong) return fail(Code::corrupt, t.name + ": " + to_string(*wrong));
    bytes += f.box.volume() * bits(t.dtype) / 8;
    return {};
  };
  RESHARD_TRY(for_each_fragment(buffers, compare));
  return bytes.load();
}

/// Overwrites every local tensor, so that what is checked later was written in between.
void spoil(const RankBuffers& buffers) {
  for (const Rank r : buffers.ranks())
    for (const SlotId slot : buffers.layout().slots_of(r))
      if (std::byte* const data = buffers.at(r, slot); data != nullptr)
        std::memset(data, 0xA5, static_cast<std::size_t>(buffers.bytes(r, slot)));
}

/// Bytes delivered in runs of each length.
Result<std::map<Index, Index>> bytes_by_run(const Planner& planner, const RankBuffers& target) {
  std::map<Index, Index> out;
  for (const Rank r : target.ranks()) {
    std::vector<Transfer> deliveries;
    planner.for_each_delivery(r, [&](const Transfer& t) { deliveries.push_back(t); });
    for (const Move& move : RESHARD_TRY(moves_of(planner, deliveries)))
      out[move.copy.run_bytes] += move.copy.bytes();
  }
  return out;
}

void add_runs(JsonLine& line, const std::map<Index, Index>& by_run) {
  std::vector<Index> runs, bytes;
  for (const auto& [run, n] : by_run) {
    runs.push_back(run);
    bytes.push_back(n);
  }
  line.add("run_bytes", runs);
  line.add("bytes_in_runs", bytes);
}

/// The memory of both sides and of the plain copies.
struct Memory {
  RankBuffers source, target;
  HostBuffer plain_source, plain_target;
};

Result<RankBuffers> buffers_of(const std::shared_ptr<const ModelLayout>& layout) {
  return RankBuffers::allocate(layout, layout->ranks().members(), {2});
}

Result<> measure(const Planner& planner, Memory& memory, Index threads, Rounds rounds,
                 JsonLine line) {
  spoil(memory.target);
  DirectOptions options;
  options.threads = static_cast<int>(threads);
  const Stopwatch preparing;
  DirectRefit refit =
      RESHARD_TRY(DirectRefit::prepare(planner, memory.source, memory.target, std::move(options)));
  line.add("prepare_seconds", preparing.seconds());
  RefitReport report;
  WorkerPool pool(static_cast<int>(threads));
  std::vector<Contender> contenders = plain_copies(
      pool, memory.plain_target.data(), memory.plain_source.data(), memory.plain_target.size());
  contenders.push_back({"refit", [&]() -> Result<> {
                          report = RESHARD_TRY(refit.run());
                          return {};
                        }});
  const auto seconds = RESHARD_TRY(by_turns(contenders, rounds));
  line.add("threads", threads);
  line.add("bytes", report.bytes);
  line.add("plain_bytes", memory.plain_target.size());
  line.add("copies", report.copies);
  add_seconds(line, contenders, seconds);
  line.add("checked_bytes", RESHARD_TRY(check(memory.target)));
  line.add("peak_rss_bytes", peak_rss_bytes());
  line.print();
  return {};
}

Result<> run(Arguments& arguments) {
  const Case c = RESHARD_TRY(case_of(arguments));
  const auto threads = RESHARD_TRY(arguments.integers("threads", "1"));
  const Index count = RESHARD_TRY(arguments.integer("rounds", 7));
  RESHARD_TRY(arguments.unused());
  const Planner planner = RESHARD_TRY(Planner::make(c.source, c.target));
  Memory memory{RESHARD_TRY(buffers_of(c.source)), RESHARD_TRY(buffers_of(c.target)), {}, {}};
  RESHARD_TRY(fill(memory.source));

  const auto by_run = RESHARD_TRY(bytes_by_run(planner, memory.target));
  Index bytes = 0;
  for (const auto& [length, n] : by_run) bytes += n;
  memory.plain_source = RESHARD_TRY(HostBuffer::allocate(bytes, {2}));
  memory.plain_target = RESHARD_TRY(HostBuffer::allocate(bytes, {2}));
  std::memset(memory.plain_source.data(), 0x5A, static_cast<std::size_t>(bytes));

  JsonLine line;
  add_runs(line, by_run);
  for (const Index n : threads)
    RESHARD_TRY(measure(planner, memory, n, count > 0 ? Rounds(count) : Rounds::on_demand(), line));
  return {};
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
