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
#include "cli/plan_pair.h"
#include "cli/progress_bar.h"
#include "cli/run_proof.h"
#include "cli/run_refit.h"
#include "cli/text.h"
#include "reshard/exec/direct.h"

namespace reshard::cli {
namespace {

/// The plain copy that a refit is measured against uses at most so much memory on either side.
constexpr Index kPlainCopyBytes = Index{1} << 30;

Index bytes_of_all_ranks(const ModelLayout& layout) {
  Index total = 0;
  layout.ranks().for_each([&](Rank r) { total += local_bytes(layout, r); });
  return total;
}

Result<> check_memory(const Model& model, const PlanPair& pair) {
  const Index source = bytes_of_all_ranks(*pair.source), target = bytes_of_all_ranks(*pair.target);
  const Index needed = source + target + 2 * std::min(target, kPlainCopyBytes);
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

/// What a run found out.
struct Outcome {
  PlanSummary plan;
  double summary_seconds = 0;
  RefitRuns runs;
  std::optional<bool> verified;
  double verify_seconds = 0;
};

std::string as_json(const PlanPair& pair, const Outcome& o) {
  const PlanCost cost{pair.layout_seconds + pair.planner_seconds + o.summary_seconds,
                      peak_rss_bytes()};
  Json::Object object = plan_object(o.plan, *pair.planner, cost);
  Json::Array seconds;
  for (double s : o.runs.seconds) seconds.push_back(json_number(s));
  object.push_back({"seconds", Json(std::move(seconds))});
  object.push_back({"gb_per_s", json_number(o.runs.bytes_per_second() / 1e9)});
  object.push_back({"memcpy_gb_per_s", json_number(o.runs.plain_bytes_per_second() / 1e9)});
  object.push_back({"copies", Json(o.runs.copies)});
  object.push_back({"verified", o.verified ? Json(*o.verified) : Json()});
  return Json(std::move(object)).dump(true) + "\n";
}

std::string runs_text(const RefitRuns& runs, const Style& style) {
  Table table({{"run", Table::Align::right},
               {"seconds", Table::Align::right},
               {"rate", Table::Align::right}});
  for (std::size_t i = 0; i < runs.seconds.size(); ++i)
    table.add({fmt::format("{}", i + 1), human_seconds(runs.seconds[i]),
               rate(runs.bytes, runs.seconds[i])});
  const double percent =
      100 * runs.bytes_per_second() / std::max(runs.plain_bytes_per_second(), 1.0);
  return table.text(style) +
         fmt::format(
             "  best run {}, {:.0f} % of a plain copy of the same bytes ({}); {} copies of "
             "{} on average\n",
             rate(runs.bytes, runs.best_seconds()), percent, rate(runs.bytes, runs.plain_seconds),
             grouped(runs.copies), human_bytes(runs.bytes / std::max<Index>(runs.copies, 1)));
}

std::string as_text(const Model& model, const PlanPair& pair, const Outcome& o) {
  const Style style = Style::of_stdout();
  std::string text = style.title(model_line(model)) + "\n" + sides_table(pair).text(style) + "\n" +
                     summary_table(o.plan).text(style) + notes_text(*pair.planner, style) + "\n" +
                     runs_text(o.runs, style);
  if (!o.verified) return text;
  const auto proved =
      fmt::format("verified: {} have the same fingerprint in sources and destinations{}",
                  plural(model.tensors->size(), "tensor"),
                  model.weights ? "" : ", every element is the oracle's");
  return text + fmt::format("  {} ({})\n", style.good(proved), human_seconds(o.verify_seconds));
}

/// Fills the source, refits, and proves the destination where that was asked for. A destination
/// that is wrong is in `outcome` and the error.
Result<> refit(const RunArguments& a, const Model& model, const PlanPair& pair, int threads,
               Outcome& outcome) {
  const auto source =
      RESHARD_TRY(RankBuffers::allocate(pair.source, pair.source->ranks().members(), threads));
  const auto target =
      RESHARD_TRY(RankBuffers::allocate(pair.target, pair.target->ranks().members(), threads));
  RESHARD_TRY(model.weights ? fill_from_checkpoint(model, source, threads)
                            : fill_from_oracle(source, a.seed, threads, ProgressBar().from()));
  outcome.runs = RESHARD_TRY(run_refit(*pair.planner, source, target, a, threads));
  if (!a.verify) return {};
  const Stopwatch proving;
  const auto oracle_seed = model.weights ? std::nullopt : std::optional(a.seed);
  auto proved = prove_refit(source, target, oracle_seed, threads);
  outcome.verify_seconds = proving.seconds();
  if (proved || !interrupted()) outcome.verified = proved.has_value();
  return proved;
}

}  // namespace

Result<int> execute(const RunArguments& a) {
  const Model model = RESHARD_TRY(open_model(a.model, {.layers = a.layers}));
  const PlanPair pair = RESHARD_TRY(plan_pair(model, a.from, a.to, a.ignore));
  RESHARD_TRY(check_memory(model, pair));
  const int threads = num_threads(a.threads);
  Outcome outcome;
  const Stopwatch summing;
  outcome.plan = summarise(*pair.planner, threads);
  outcome.summary_seconds = summing.seconds();
  catch_interrupts();
  auto done = refit(a, model, pair, threads, outcome);
  const bool wrong = outcome.verified == false;
  if (a.json && (done || wrong)) print(as_json(pair, outcome));
  if (wrong) return tl::unexpected(std::move(done).error().in("the refit is wrong"));
  if (!done) return tl::unexpected(std::move(done).error());
  if (!a.json) print(as_text(model, pair, outcome));
  return 0;
}

}  // namespace reshard::cli
