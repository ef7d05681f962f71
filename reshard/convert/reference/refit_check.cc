// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/refit_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "reshard/convert/reference/byte_check.h"
#include "reshard/convert/reference/oracle_values.h"

namespace reshard {
namespace {

std::string what_differs(const ModelFingerprints::Tensor& source,
                         const ModelFingerprints::Tensor& target) {
  if (!source.agree) return "source: " + source.disagreement;
  if (!target.agree) return "target: " + target.disagreement;
  return fmt::format("source {}, target {}", to_string(source.fingerprint),
                     to_string(target.fingerprint));
}

/// For each TensorId, whether both sides hold the tensor, and `only` names it or is empty.
std::vector<bool> moved_tensors(const ModelLayout& source, const ModelLayout& target,
                                const std::set<std::string>& only) {
  std::vector<bool> moved;
  for (Index i = 0; i < target.model().size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    moved.push_back(!source.parts_of(id).empty() && !target.parts_of(id).empty() &&
                    (only.empty() || only.contains(target.model()[id].name)));
  }
  return moved;
}

/// Describes the first tensor that differs; empty if none does.
std::string first_difference(const ModelSpec& model, const std::vector<bool>& moved,
                             const ModelFingerprints& before, const ModelFingerprints& after) {
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const auto &x = before.tensors[i], &y = after.tensors[i];
    if (!moved[i] || (x.fingerprint == y.fingerprint && x.agree && y.agree)) continue;
    return fmt::format("tensor '{}': {}", model.tensors()[i].name, what_differs(x, y));
  }
  return "";
}

/// Enough for one line.
constexpr std::size_t kMaxVerdictBytes = 1024;

/// The lowest rank's text that is not empty.
Result<std::string> first_verdict(std::string mine, ControlPlane& control, Deadline deadline) {
  mine.resize(std::min(mine.size(), kMaxVerdictBytes));
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(mine)), deadline));
  for (const auto& text : all)
    if (!text.empty())
      return std::string(reinterpret_cast<const char*>(text.data()),
                         std::min(text.size(), kMaxVerdictBytes));
  return std::string();
}

}  // namespace

Result<> check_refit(const RankBuffers& source, const RankBuffers& target,
                     std::optional<std::uint64_t> oracle_seed, int threads,
                     const Progress& progress, const std::set<std::string>& only) {
  const auto forms = forms_of(target.layout());
  const ModelFingerprints before = RESHARD_TRY(fingerprints(source, threads, progress, forms));
  const ModelFingerprints after = RESHARD_TRY(fingerprints(target, threads, progress));
  const auto moved = moved_tensors(source.layout(), target.layout(), only);
  if (auto wrong = first_difference(target.layout().model(), moved, before, after); !wrong.empty())
    return fail(Code::corrupt, std::move(wrong));
  if (!oracle_seed) return {};
  return check_against_oracle(target, forms_of(source.layout()), moved, *oracle_seed, threads,
                              progress);
}

Result<std::string> check_rank_refit(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target,
                                     std::optional<std::uint64_t> oracle_seed, Transport& transport,
                                     ControlPlane& control, const FingerprintOptions& options,
                                     const std::set<std::string>& only) {
  const ModelLayout &from = planner.source(), &to = planner.target();
  const auto forms = forms_of(to);
  const ModelFingerprints before =
      RESHARD_TRY(rank_fingerprints(from, source, transport, control, options, forms));
  const ModelFingerprints after =
      RESHARD_TRY(rank_fingerprints(to, target, transport, control, options));
  const auto moved = moved_tensors(from, to, only);
  auto wrong = first_difference(to.model(), moved, before, after);
  if (!oracle_seed || !wrong.empty()) return wrong;
  Result<> checked;
  if (target != nullptr)
    checked = check_against_oracle(*target, forms_of(from), moved, *oracle_seed, options.threads,
                                   options.progress);
  return agree_on_verdict(std::move(checked), control, options.deadline);
}

Result<> check_quantised_refit(const ReferenceJob& job, const RankBuffers& target, int threads,
                               const Progress& progress) {
  auto sides = RESHARD_TRY(ReferenceSides::of(job));
  const auto moved = moved_tensors(*job.pair.source, *job.pair.target, job.pair.only);
  auto checked = check_against_reference(sides.target(), target, moved, threads, progress);
  if (job.model.weights) RESHARD_TRY(job.model.unchanged());
  return checked;
}

Result<std::string> agree_on_verdict(Result<> mine, ControlPlane& control, Deadline deadline) {
  if (!mine && mine.error().code != Code::corrupt) return tl::unexpected(std::move(mine).error());
  return first_verdict(mine ? "" : std::move(mine).error().message, control, deadline);
}

}  // namespace reshard
