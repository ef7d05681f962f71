// SPDX-License-Identifier: Apache-2.0
#include "cli/run_proof.h"

#include <fmt/format.h>

#include <vector>

#include "cli/oracle_values.h"
#include "cli/progress_bar.h"
#include "reshard/exec/proof.h"

namespace reshard::cli {
namespace {

std::string what_differs(const Prints::Tensor& source, const Prints::Tensor& target) {
  if (!source.agree) return "source: " + source.disagreement;
  if (!target.agree) return "target: " + target.disagreement;
  return fmt::format("source {}, target {}", to_string(source.print), to_string(target.print));
}

}  // namespace

Result<> prove_refit(const RankBuffers& source, const RankBuffers& target,
                     std::optional<std::uint64_t> oracle_seed, int threads) {
  ProgressBar bar;
  const auto forms = forms_of(target.layout());
  const Prints before = RESHARD_TRY(fingerprints(source, threads, bar.from(), forms));
  const Prints after = RESHARD_TRY(fingerprints(target, threads, bar.from()));
  const ModelSpec& model = target.layout().model();
  std::vector<bool> moved;
  for (Index i = 0; i < model.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    moved.push_back(!source.layout().places(id).empty() && !target.layout().places(id).empty());
    if (!moved.back()) continue;  // the plan was told to ignore it
    const auto &x = before.tensors[id.index()], &y = after.tensors[id.index()];
    if (x.print == y.print && x.agree && y.agree) continue;
    return fail(Code::corrupt, fmt::format("tensor '{}': {}", model[id].name, what_differs(x, y)));
  }
  if (!oracle_seed) return {};
  return check_against_oracle(target, forms_of(source.layout()), moved, *oracle_seed, threads,
                              bar.from());
}

}  // namespace reshard::cli
