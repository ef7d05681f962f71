// SPDX-License-Identifier: Apache-2.0
// A refit between processes, in turn with other ways to move the same bytes. Checks every
// destination element afterwards. Runs one process per rank, started by mpirun or with RANK and
// WORLD_SIZE set; rank 0 prints one line.
//
//   rank_bench <a job, see rank_job.h> [--rounds N] [--staging BYTES] [--path direct|message]
//              [--ways pull,gather,broadcast,alltoallw,isend,message,routed] [--hosts
//              RANKS_PER_HOST]
//              [--mapped RANKS]
//
// The way `message` is the same refit with every pair of ranks on the message path; in `routed`,
// replicas relay what they receive (the ranks must be on several hosts). With --mapped N
// only the first N ranks can map memory.
// alltoallw and isend need the programs rank_bench_openmpi or rank_bench_mpich.
#include <algorithm>
#include <sstream>

#include "bench/common/values.h"
#include "bench/mpi_ways.h"
#include "bench/rank_ways.h"
#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/routes/relay_places.h"
#include "reshard/transport/host_identity.h"

namespace reshard::bench {
namespace {

/// The other ways and their buffers.
struct Ways {
  std::unique_ptr<PlainPulls> pulls;
  std::vector<std::unique_ptr<WholeTensors>> whole;
  std::unique_ptr<MpiWays> mpi;
  std::unique_ptr<RankRefit> message;
  std::unique_ptr<Planner> routed_plan;
  std::unique_ptr<RankRefit> routed;
  std::vector<Contender> contenders;

  void add(std::vector<Contender> more) {
    contenders.insert(contenders.end(), more.begin(), more.end());
  }
};

Result<RankRefit> prepare(const RankJob& job, const RankRefitOptions& options) {
  return RankRefit::prepare(*job.planner, job.source.get(), job.target.get(), *job.group.transport,
                            *job.group.control, options);
}

/// Runs the refit into a target of wrong values and checks every element.
Result<> run_checked(const RankJob& job, RankRefit& refit, RankReport& report) {
  if (job.target) spoil_values(*job.target);
  report = RESHARD_TRY(refit.run());
  if (job.target) RESHARD_TRY(check_values(*job.target));
  return {};
}

Result<> add_messages(const RankJob& job, RankRefitOptions options, Ways& ways) {
  options.path = RefitPath::message;
  ways.message = std::make_unique<RankRefit>(RESHARD_TRY(prepare(job, options)));
  RankReport report;
  RESHARD_TRY(run_checked(job, *ways.message, report));
  ways.add({together(job, "message", [&refit = *ways.message]() -> Result<> {
    RESHARD_TRY(refit.run());
    return {};
  })});
  return {};
}

Result<> add_routed(const RankJob& job, const RankRefitOptions& options, Ways& ways) {
  ControlPlane& control = *job.group.control;
  const auto places = RESHARD_TRY(gather_places(host_identity(), control, patient()));
  ways.routed_plan = std::make_unique<Planner>(
      RESHARD_TRY(Planner::make(job.layouts.source, job.layouts.target, {{}, {}, places})));
  if (!ways.routed_plan->uses_relays())
    return fail(Code::invalid_argument, "relays gain nothing between these ranks");
  ways.routed = std::make_unique<RankRefit>(
      RESHARD_TRY(RankRefit::prepare(*ways.routed_plan, job.source.get(), job.target.get(),
                                     *job.group.transport, control, options)));
  RankReport report;
  RESHARD_TRY(run_checked(job, *ways.routed, report));
  ways.add({together(job, "routed", [&refit = *ways.routed]() -> Result<> {
    RESHARD_TRY(refit.run());
    return {};
  })});
  return {};
}

Result<> add_way(const RankJob& job, const std::string& name, bool shared,
                 const RankRefitOptions& options, Ways& ways) {
  if (name == "pull") {
    ways.pulls = RESHARD_TRY(PlainPulls::make(job, shared));
    ways.add(ways.pulls->contenders());
  } else if (name == "gather" || name == "broadcast") {
    const auto way = name == "gather" ? WholeTensors::Way::gather : WholeTensors::Way::broadcast;
    ways.whole.push_back(RESHARD_TRY(WholeTensors::make(job, way)));
    ways.add({ways.whole.back()->contender()});
  } else if (name == "message") {
    RESHARD_TRY(add_messages(job, options, ways));
  } else if (name == "routed") {
    RESHARD_TRY(add_routed(job, options, ways));
  } else if (name == "alltoallw" || name == "isend") {
    if (!ways.mpi) ways.mpi = RESHARD_TRY(MpiWays::make(job));
    ways.add({name == "isend" ? ways.mpi->isend() : ways.mpi->alltoallw()});
  } else {
    return fail(Code::invalid_argument, "no way '" + name + "'");
  }
  return {};
}

Result<RankRefitOptions> options_of(Arguments& arguments) {
  RankRefitOptions options;
  options.seconds = 300;
  options.staging_bytes = RESHARD_TRY(arguments.integer("staging", options.staging_bytes));
  const std::string path = arguments.text("path", "automatic");
  if (path == "direct") options.path = RefitPath::direct;
  if (path == "message") options.path = RefitPath::message;
  return options;
}

/// Bytes that this rank sends and receives over its host's link.
struct LinkBytes {
  Index out = 0, in = 0;
};

LinkBytes link_bytes(const RankJob& job, Index per_host) {
  const auto bytes_across = [&](const std::vector<Transfer>& transfers) {
    Index bytes = 0;
    for (const Transfer& t : transfers)
      if (t.src.value() / per_host != t.dst.value() / per_host)
        bytes += t.box.volume() * bits(job.layouts.source->model()[t.tensor].dtype) / 8;
    return bytes;
  };
  const RankPlan part = job.planner->rank_plan(job.rank());
  return {bytes_across(part.sends), bytes_across(part.recvs)};
}

/// Bytes that the busiest host link carries in one direction.
Result<Index> busiest_link(const RankJob& job, Index per_host) {
  const LinkBytes mine = link_bytes(job, per_host);
  Index most = 0;
  for (Index host = 0; host * per_host < job.size(); ++host) {
    const bool here = job.rank().value() / per_host == host;
    most = std::max(most, RESHARD_TRY(job.sum(here ? mine.out : 0)));
    most = std::max(most, RESHARD_TRY(job.sum(here ? mine.in : 0)));
  }
  return most;
}

/// When the first and the last sending rank finished sending in the last refit. Seconds.
Result<> add_ends(const RankJob& job, const RankReport& report, JsonLine& line) {
  const double mine = report.wait_seconds + report.move_seconds;
  const bool counts = report.sent > 0;
  const auto microseconds = static_cast<Index>(mine * 1e6);
  const Index last = RESHARD_TRY(job.max(counts ? microseconds : 0));
  constexpr Index kNever = Index{1} << 60;
  const Index first = kNever - RESHARD_TRY(job.max(counts ? kNever - microseconds : 0));
  line.add("first_done", static_cast<double>(first) / 1e6);
  line.add("last_done", static_cast<double>(last) / 1e6);
  return {};
}

Result<> print(const RankJob& job, const RankRefit& refit, const RankReport& report,
               const Ways& ways, const std::vector<std::vector<double>>& seconds, Index per_host) {
  JsonLine line;
  line.add("transport", job.transport);
  line.add("path", refit.path());
  line.add("ranks", Index{job.size()});
  const Index delivered = RESHARD_TRY(job.bytes_delivered());
  line.add("bytes", RESHARD_TRY(job.sum(delivered)));
  line.add("most_delivered", RESHARD_TRY(job.max(delivered)));
  line.add("bytes_sent", RESHARD_TRY(job.sum(report.sent)));
  line.add("most_sent", RESHARD_TRY(job.max(report.sent)));
  line.add("staging_bytes", RESHARD_TRY(job.max(refit.staging_bytes())));
  if (per_host > 0) line.add("busiest_link_bytes", RESHARD_TRY(busiest_link(job, per_host)));
  RESHARD_TRY(add_ends(job, report, line));
  add_seconds(line, ways.contenders, seconds);
  Index checked = 0;
  if (job.target) checked = RESHARD_TRY(check_values(*job.target));
  line.add("checked_bytes", RESHARD_TRY(job.sum(checked)));
  line.add("most_rss_bytes", RESHARD_TRY(job.max(peak_rss_bytes())));
  if (job.rank() == Rank{0}) line.print();
  return {};
}

Result<> run(Arguments& arguments) {
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 7));
  const bool shared = arguments.text("memory", "shared") == "shared";
  const auto options = RESHARD_TRY(options_of(arguments));
  const Index per_host = RESHARD_TRY(arguments.integer("hosts", 0));
  std::istringstream names(arguments.text("ways"));
  RankJob job = RESHARD_TRY(join_job(arguments));
  const Index mapped = RESHARD_TRY(arguments.integer("mapped", job.size()));
  if (job.rank().value() >= mapped)
    job.group.transport =
        std::make_unique<LimitedTransport>(std::move(job.group.transport), Limit::no_direct);
  RESHARD_TRY(arguments.unused());
  Ways ways;
  for (std::string name; std::getline(names, name, ',');)
    RESHARD_TRY(add_way(job, name, shared, options, ways));
  if (job.target) spoil_values(*job.target);
  auto refit = RESHARD_TRY(prepare(job, options));
  RankReport report;
  ways.add({together(job, "refit", [&]() -> Result<> {
    report = RESHARD_TRY(refit.run());
    return {};
  })});
  const auto seconds = RESHARD_TRY(by_turns(ways.contenders, Rounds(rounds)));
  // The other refit wrote the same values.
  if (ways.message || ways.routed) RESHARD_TRY(run_checked(job, refit, report));
  RESHARD_TRY(print(job, refit, report, ways, seconds, per_host));
  return job.group.control->quiesce(patient());
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
