// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cli/checkpoint_source.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/layout_source.h"
#include "cli/measure.h"
#include "cli/oracle_values.h"
#include "cli/plan_pair.h"
#include "cli/progress_bar.h"
#include "cli/run_refit.h"
#include "cli/text.h"
#include "reshard/exec/direct.h"
#include "reshard/exec/proof.h"

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
Result<> fill_from_checkpoint(const Model& model, const RankBuffers& source, int threads,
                              ProgressBar& bar) {
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

/// Sources and destinations have the same fingerprints, replicas among them agree, and where the
/// oracle knows the values every destination element is compared with it.
Result<> prove(const Model& model, const RunArguments& a, const RankBuffers& source,
               const RankBuffers& target, int threads) {
  ProgressBar bar;
  const Prints before = RESHARD_TRY(fingerprints(source, threads, bar.from()));
  const Prints after = RESHARD_TRY(fingerprints(target, threads, bar.from()));
  for (Index i = 0; i < model.tensors->size(); ++i) {
    // Ignored tensors are on one side only.
    const TensorId id(static_cast<TensorId::rep>(i));
    if (a.ignore.contains((*model.tensors)[id].name)) continue;
    const auto &x = before.tensors[id.index()], &y = after.tensors[id.index()];
    if (x.print == y.print && x.agree && y.agree) continue;
    return fail(Code::corrupt,
                fmt::format("tensor '{}': {}", (*model.tensors)[id].name,
                            !x.agree   ? "source: " + x.disagreement
                            : !y.agree ? "target: " + y.disagreement
                                       : fmt::format("source {}, target {}", to_string(x.print),
                                                     to_string(y.print))));
  }
  if (model.weights) return {};
  return check_against_oracle(target, a.seed, threads, bar.from());
}

std::string as_json(const RunArguments& a, const PlanPair& pair, const PlanSummary& sum,
                    double summary_seconds, const RefitRuns& runs) {
  const PlanCost cost{pair.layout_seconds + pair.planner_seconds + summary_seconds,
                      peak_rss_bytes()};
  Json::Object object = plan_object(sum, pair.planner->digest(), cost);
  Json::Array seconds;
  for (double s : runs.seconds) seconds.push_back(json_number(s));
  object.push_back({"seconds", Json(std::move(seconds))});
  object.push_back({"gb_per_s", json_number(runs.bytes_per_second() / 1e9)});
  object.push_back({"memcpy_gb_per_s", json_number(runs.plain_bytes_per_second() / 1e9)});
  object.push_back({"copies", Json(runs.copies)});
  object.push_back({"verified", a.verify ? Json(true) : Json()});
  return Json(std::move(object)).dump(true) + "\n";
}

std::string as_text(const RunArguments& a, const Model& model, const PlanPair& pair,
                    const PlanSummary& sum, const RefitRuns& runs, double verify_seconds) {
  const Style style = Style::of_stdout();
  std::string text = style.title(model_line(model)) + "\n" + sides_table(pair).text(style) + "\n" +
                     summary_table(sum).text(style) + "\n";
  Table table({{"run", Table::Align::right},
               {"seconds", Table::Align::right},
               {"rate", Table::Align::right}});
  for (std::size_t i = 0; i < runs.seconds.size(); ++i)
    table.add({fmt::format("{}", i + 1), human_seconds(runs.seconds[i]),
               rate(runs.bytes, runs.seconds[i])});
  text += table.text(style);
  text += fmt::format(
      "  best run {}, {:.0f} % of a plain copy of the same bytes ({}); {} copies of {} on "
      "average\n",
      rate(runs.bytes, runs.best_seconds()),
      100 * runs.bytes_per_second() / std::max(runs.plain_bytes_per_second(), 1.0),
      rate(runs.bytes, runs.plain_seconds), grouped(runs.copies),
      human_bytes(runs.bytes / std::max<Index>(runs.copies, 1)));
  if (a.verify)
    text += "  " +
            style.good(
                fmt::format("verified: {} have the same fingerprint in sources and destinations{}",
                            plural(model.tensors->size(), "tensor"),
                            model.weights ? "" : ", every element is the oracle's")) +
            fmt::format(" ({})\n", human_seconds(verify_seconds));
  return text;
}

}  // namespace

Result<int> execute(const RunArguments& a) {
  const Model model = RESHARD_TRY(open_model(a.model, {.layers = a.layers}));
  const PlanPair pair = RESHARD_TRY(plan_pair(model, a.from, a.to, a.ignore));
  RESHARD_TRY(check_memory(model, pair));
  const int threads = num_threads(a.threads);
  const Stopwatch summing;
  const PlanSummary sum = summarise(*pair.planner, threads);
  const double summary_seconds = summing.seconds();

  catch_interrupts();
  const auto source =
      RESHARD_TRY(RankBuffers::allocate(pair.source, pair.source->ranks().members(), threads));
  const auto target =
      RESHARD_TRY(RankBuffers::allocate(pair.target, pair.target->ranks().members(), threads));
  {
    ProgressBar bar;
    if (model.weights) {
      RESHARD_TRY(fill_from_checkpoint(model, source, threads, bar));
    } else {
      RESHARD_TRY(fill_from_oracle(source, a.seed, threads, bar.from()));
    }
  }
  const RefitRuns runs = RESHARD_TRY(run_refit(*pair.planner, source, target, a, threads));
  const Stopwatch proving;
  if (a.verify) {
    if (auto proved = prove(model, a, source, target, threads); !proved)
      return tl::unexpected(std::move(proved).error().in("the refit is wrong"));
  }
  const double verify_seconds = proving.seconds();
  print(a.json ? as_json(a, pair, sum, summary_seconds, runs)
               : as_text(a, model, pair, sum, runs, verify_seconds));
  return 0;
}

}  // namespace reshard::cli
