// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/command_spec.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/progress_bar.h"
#include "cli/run/common_settings.h"
#include "cli/run/device_run.h"
#include "cli/run/processes/rank_place.h"
#include "cli/run/processes/rank_run.h"
#include "cli/run/processes/spawn.h"
#include "cli/run/rank_weights.h"
#include "cli/run/run_job.h"
#include "cli/run/thread_run.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/reference/refit_check.h"

namespace reshard::cli {
namespace {

/// Memory on either side for the plain copy that a refit is compared with.
constexpr Index kPlainCopyBytes = Index{512} << 20;

void summarise(RunJob& job) {
  const Stopwatch watch;
  job.plan = summarise(*job.pair.planner, job.threads);
  job.summary_seconds = watch.seconds();
}

Result<> check_memory(const Model& model, const RunJob& job, Index copy_bytes) {
  const ModelLayout &from = *job.pair.from.stored(), &to = *job.pair.to.stored();
  const Index copies = job.arguments.buffering == Buffering::doubled ? 2 : 1;
  const Index source = total_bytes(from), target = copies * total_bytes(to);
  const Index needed = source + target + 2 * std::min(target, copy_bytes);
  const Index available = available_memory();
  if (available == 0 || needed <= available) return {};
  return fail(Code::io,
              fmt::format("{} of memory are needed ({} for the ranks of {}, {} for those of {}), "
                          "{} are available; {}",
                          human_bytes(needed), human_bytes(source), from.name(),
                          human_bytes(target), to.name(), human_bytes(available),
                          model.weights ? "use smaller layouts or convert"
                                        : "use --layers N for a model of fewer layers"));
}

/// True if the ranks must be threads of a session. Otherwise one process copies for all of them.
bool needs_session(const RunJob& job) {
  const RunArguments& a = job.arguments;
  return job.pair.quantises() || a.path == RefitPath::message ||
         a.buffering == Buffering::doubled || a.check_fingerprints || !a.trace.empty();
}

/// Writes what is wrong to the outcome. Errors: verification could not run.
Result<> verify(const RunJob& job, const RankWeights& weights, const TargetVersion& version,
                Outcome& outcome) {
  const Stopwatch verifying;
  const auto oracle_seed = job.model.weights ? std::nullopt : std::optional(job.arguments.seed);
  const RankBuffers& target = *weights.readable(version);
  auto verdict =
      job.pair.quantises()
          ? check_quantised_refit(reference_job(job), target, job.threads, ProgressBar().progress())
          : check_refit(*weights.source, target, oracle_seed, job.threads, ProgressBar().progress(),
                        job.pair.only);
  outcome.verify_seconds += verifying.seconds();
  if (!verdict && verdict.error().code != Code::corrupt) return verdict;
  if (!verdict && outcome.wrong.empty()) outcome.wrong = std::move(verdict).error().message;
  outcome.verified = outcome.wrong.empty();
  return {};
}

Result<Outcome> refit(const RunJob& job) {
  Outcome outcome;
  TargetVersion version;
  std::shared_ptr<const cuda::Device> gpu;
  if (job.arguments.gpu) gpu = RESHARD_TRY(open_gpu(*job.arguments.gpu));
  const auto weights = RESHARD_TRY(all_weights(job, ProgressBar().progress()));
  if (gpu != nullptr) {
    SessionSide source = session_side(job.pair.from), target = session_side(job.pair.to);
    source.buffers = &*weights.source;
    target.buffers = &*weights.target;
    outcome.runs = RESHARD_TRY(run_on_device(
        source, target,
        {job.pair.ignore, job.pair.only, job.arguments.repeat, job.arguments.check_fingerprints},
        gpu));
  } else if (needs_session(job)) {
    outcome = RESHARD_TRY(run_threads(job, weights, version));
  } else {
    outcome.runs = RESHARD_TRY(run_direct(*job.pair.planner, *weights.source, *weights.target,
                                          job.arguments, job.threads));
  }
  if (job.arguments.verify) RESHARD_TRY(verify(job, weights, version, outcome));
  return outcome;
}

Result<int> run_here(RunJob job) {
  RESHARD_TRY(check_memory(job.model, job, kPlainCopyBytes));
  job.threads = num_threads(job.arguments.threads);
  summarise(job);
  catch_interrupts();
  const Outcome outcome = RESHARD_TRY(refit(job));
  if (job.arguments.json) print(run_json(job, outcome));
  if (!outcome.wrong.empty()) return fail(Code::corrupt, "the refit is wrong: " + outcome.wrong);
  if (!job.arguments.json) print(run_text(job, outcome));
  return 0;
}

/// Starts the processes, after checks that need only one process.
Result<int> run_by_spawning(const RunJob& job) {
  RESHARD_TRY(check_memory(job.model, job, kPlainCopyBytes));
  const auto ranks = RESHARD_TRY(ranks_of_program(job.arguments, *job.pair.planner));
  if (!job.arguments.secret_file.empty()) RESHARD_TRY(Secret::from_file(job.arguments.secret_file));
  const RunArguments& a = job.arguments;
  return spawn_ranks(
      {ranks.first, ranks.last - ranks.first + 1, a.rendezvous, a.job, a.deadline_seconds});
}

Result<int> run_as_rank(RunJob job, const std::optional<Spawned>& spawned) {
  auto place = RESHARD_TRY(find_rank_place(job.arguments, *job.pair.planner, spawned));
  const int wanted = num_threads(job.arguments.threads);
  job.threads = job.arguments.threads > 0 ? wanted : std::max(1, wanted / place.program);
  place.join.settings = common_settings(job);
  if (place.join.rank == place.first) summarise(job);
  return run_rank(job, std::move(place));
}

Result<int> run(const RunArguments& a, const std::optional<Spawned>& spawned) {
  const Model model = RESHARD_TRY(
      open_model(a.model, {.layers = a.layers, .ignore = a.ignore, .prefix = a.prefix}));
  const LayoutPair pair =
      RESHARD_TRY(make_layout_pair(model, a.from, a.to, {.only = a.only, .filled = true}));
  if (a.gpu && a.check_fingerprints && pair.quantises())
    RESHARD_TRY(refuse("--verify=fingerprints",
                       "a refit on a GPU that quantises has no session that could; use "
                       "--verify=bytes"));
  std::vector<ConversionRow> conversions;
  if (pair.quantises()) conversions = RESHARD_TRY(conversion_rows(pair, a.convert));
  const RunJob job{a, model, pair, std::move(conversions), 1, {}, 0};
  if (!a.in_processes()) return run_here(job);
  if (a.spawn && !spawned) return run_by_spawning(job);
  return run_as_rank(job, spawned);
}

}  // namespace

Result<int> execute(const RunArguments& a) {
  const auto spawned = a.spawn ? Spawned::of_environment() : std::nullopt;
  auto done = run(a, spawned);
  if (done || !a.in_processes()) return done;
  if (spawned) {
    report_to_parent(*spawned, done.error());
    return exit_code(done.error());
  }
  // An error that all processes find is printed once; files are each host's own.
  const bool alike = done.error().code != Code::io && done.error().code != Code::corrupt;
  if (alike && !a.spawn && !is_first_of_launch()) return exit_code(done.error());
  return done;
}

}  // namespace reshard::cli
