// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/checkpoint_source.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/layout_source.h"
#include "cli/measure.h"
#include "cli/oracle_values.h"
#include "cli/own_weights.h"
#include "cli/place.h"
#include "cli/progress_bar.h"
#include "cli/rank_run.h"
#include "cli/run_job.h"
#include "cli/run_proof.h"
#include "cli/spawn.h"
#include "cli/text.h"
#include "reshard/exec/direct.h"

namespace reshard::cli {
namespace {

/// The plain copy that a refit is measured against uses at most so much memory on either side.
constexpr Index kPlainCopyBytes = Index{1} << 30;

void summarise(RunJob& job) {
  const Stopwatch watch;
  job.plan = summarise(*job.pair.planner, job.threads);
  job.summary_seconds = watch.seconds();
}

Result<> check_memory(const Model& model, const PlanPair& pair, Index copy_bytes) {
  const Index source = total_bytes(*pair.source), target = total_bytes(*pair.target);
  const Index needed = source + target + 2 * std::min(target, copy_bytes);
  const Index available = available_memory();
  if (available == 0 || needed <= available) return {};
  return fail(Code::io,
              fmt::format("{} of memory are needed ({} for the ranks of {}, {} for those of {}), "
                          "{} are available; {}",
                          human_bytes(needed), human_bytes(source), pair.source->name(),
                          human_bytes(target), pair.target->name(), human_bytes(available),
                          model.weights ? "use smaller layouts or convert"
                                        : "use --layers N for a model of fewer layers"));
}

/// Weights of a checkpoint in the ranks of the source layout.
Result<> fill_from_checkpoint(const Model& model, const RankBuffers& source, int threads) {
  ProgressBar bar;
  const auto own = RESHARD_TRY(own_layout(model));
  const auto files = RESHARD_TRY(CheckpointSource::bind(model, own));
  const Planner planner = RESHARD_TRY(Planner::make(own, source.shared_layout()));
  DirectOptions options;
  options.threads = threads;
  options.progress = bar.from();
  auto refit = RESHARD_TRY(DirectRefit::prepare(planner, files.buffers(), source, options));
  RESHARD_TRY(refit.run());
  return {};
}

/// Fills the source, refits, and proves the destination where that was asked for. A destination
/// that is wrong is in `outcome` and the error.
Result<> refit(const RunJob& job, Outcome& outcome) {
  const RunArguments& a = job.arguments;
  const PlanPair& pair = job.pair;
  const auto source = RESHARD_TRY(
      RankBuffers::allocate(pair.source, pair.source->ranks().members(), {job.threads}));
  const auto target = RESHARD_TRY(
      RankBuffers::allocate(pair.target, pair.target->ranks().members(), {job.threads}));
  RESHARD_TRY(job.model.weights
                  ? fill_from_checkpoint(job.model, source, job.threads)
                  : fill_from_oracle(source, a.seed, job.threads, ProgressBar().from()));
  outcome.runs = RESHARD_TRY(run_refit(*pair.planner, source, target, a, job.threads));
  if (!a.verify) return {};
  const Stopwatch proving;
  const auto oracle_seed = job.model.weights ? std::nullopt : std::optional(a.seed);
  auto proved = prove_refit(source, target, oracle_seed, job.threads);
  outcome.verify_seconds = proving.seconds();
  if (proved || !interrupted()) outcome.verified = proved.has_value();
  return proved;
}

Result<int> run_here(RunJob job) {
  RESHARD_TRY(check_memory(job.model, job.pair, kPlainCopyBytes));
  job.threads = num_threads(job.arguments.threads);
  summarise(job);
  catch_interrupts();
  Outcome outcome;
  auto done = refit(job, outcome);
  const bool wrong = outcome.verified == false;
  if (job.arguments.json && (done || wrong)) print(run_json(job, outcome));
  if (wrong) return tl::unexpected(std::move(done).error().in("the refit is wrong"));
  if (!done) return tl::unexpected(std::move(done).error());
  if (!job.arguments.json) print(run_text(job, outcome));
  return 0;
}

/// Starts the processes, once it is known that their job can be done.
Result<int> run_by_spawning(const RunJob& job) {
  RESHARD_TRY(check_memory(job.model, job.pair, 0));
  const auto ranks = RESHARD_TRY(ranks_of_program(job.arguments, *job.pair.planner));
  if (!job.arguments.secret_file.empty()) RESHARD_TRY(Secret::from_file(job.arguments.secret_file));
  return spawn_ranks(ranks.first, ranks.last - ranks.first + 1, job.arguments.rendezvous.empty());
}

Result<int> run_as_rank(RunJob job, const std::optional<Spawned>& spawned) {
  auto place = RESHARD_TRY(find_place(job.arguments, *job.pair.planner, spawned));
  const int wanted = num_threads(job.arguments.threads);
  job.threads = job.arguments.threads > 0 ? wanted : std::max(1, wanted / place.program);
  if (place.join.rank == place.first) summarise(job);
  return run_rank(job, place);
}

/// A run moves bytes and converts numbers; it does not quantise.
Result<> check_formats(const Model& model, const PlanPair& pair) {
  const bool as_stored = pair.source->model().digest() != model.tensors->digest();
  if (as_stored || (pair.notes.empty() && !model.stored)) return {};
  return fail(Code::unsupported,
              fmt::format("{} to {}: a run does not quantise or dequantise; convert does, and a "
                          "run moves what is stored alike on both sides",
                          pair.source->name(), pair.target->name()));
}

Result<int> run(const RunArguments& a, const std::optional<Spawned>& spawned) {
  const Model model = RESHARD_TRY(open_model(a.model, {.layers = a.layers}));
  const PlanPair pair = RESHARD_TRY(plan_pair(model, a.from, a.to, a.ignore));
  RESHARD_TRY(check_formats(model, pair));
  const RunJob job{a, model, pair, 1, {}, 0};
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
    tell_parent(*spawned, done.error());
    return 1;
  }
  // What all processes find alike is said once; files are each host's own.
  const bool alike = done.error().code != Code::io && done.error().code != Code::corrupt;
  if (alike && !a.spawn && !is_first_of_launch()) return 1;
  return done;
}

}  // namespace reshard::cli
