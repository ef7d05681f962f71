// SPDX-License-Identifier: Apache-2.0
// Refits between ranks of one process, in turn with plain copies of as many bytes. Checks every
// destination element afterwards. Prints one line per number of threads.
//
//   refit_bench <a case, see case.h> [--threads 1,2] [--rounds N]
//
// --rounds 0 measures one round per line of standard input, until that ends (see Rounds).
#include <algorithm>
#include <cstring>
#include <map>

#include "bench/common/case.h"
#include "bench/common/plain_ways.h"
#include "bench/common/values.h"
#include "reshard/exec/in_process.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/plan/moves.h"

namespace reshard::bench {
namespace {

/// Bytes delivered, by length of run.
Result<std::map<Index, Index>> bytes_by_run(const Planner& planner, const RankBuffers& target) {
  std::map<Index, Index> out;
  for (const Rank r : target.ranks()) {
    std::vector<Transfer> deliveries;
    planner.for_each_delivery(r, [&](const Transfer& t) { deliveries.push_back(t); });
    for (const Move& move : RESHARD_TRY(copy_ops(planner, deliveries)))
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
  spoil_values(memory.target);
  InProcessOptions options;
  options.threads = static_cast<int>(threads);
  const Stopwatch preparing;
  InProcessRefit refit = RESHARD_TRY(
      InProcessRefit::prepare(planner, memory.source, memory.target, std::move(options)));
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
  line.add("checked_bytes", RESHARD_TRY(check_values(memory.target)));
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
  RESHARD_TRY(fill_values(memory.source));

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
