// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/planned_move.h"

#include <fmt/format.h>

#include "reshard/exec/agreement.h"
#include "reshard/exec/end_group.h"

namespace reshard::conversion {

Result<PlannedMove> PlannedMove::plan(std::shared_ptr<const ModelLayout> from,
                                      std::shared_ptr<const ModelLayout> to,
                                      const PlanOptions& options) {
  PlannedMove move;
  move.planner_ = std::make_unique<Planner>(
      RESHARD_TRY(Planner::make(std::move(from), std::move(to), options)));
  return move;
}

Result<> PlannedMove::prepare(const JobGroup& group, Memory memory) {
  memory_ = std::make_unique<Memory>(std::move(memory));
  RankRefitHooks hooks = group.hooks;
  if (produces() || consumes()) hooks.conversions = &memory_->conversions;
  for (const RankBuffers* to : memory_->into)
    refits_.push_back(RESHARD_TRY(RankRefit::prepare(*planner_, memory_->from, to, group.transport,
                                                     group.control, group.options, hooks)));
  return {};
}

Result<> PlannedMove::run(int copy, SessionReport& report) {
  const RankReport moved = RESHARD_TRY(refits_[index(copy)].run());
  report.move_seconds += moved.seconds;
  report.bytes += moved.bytes;
  report.sent += moved.sent;
  report.received += moved.received;
  report.copied += moved.copied;
  report.wait_seconds += moved.wait_seconds;
  report.finish_seconds += moved.finish_seconds;
  report.copies += moved.copies;
  report.messages += moved.messages;
  return {};
}

Index PlannedMove::staging_bytes() const {
  Index most = 0;
  for (const RankRefit& refit : refits_) most = std::max(most, refit.staging_bytes());
  return most;
}

Result<> PlannedMove::prepare_verifiers(const JobGroup& group) {
  if (from_verifier_) return {};
  std::vector<bool> tensors;
  for (Index i = 0; i < planner_->source().model().size(); ++i)
    tensors.push_back(planner_->moves(TensorId(static_cast<TensorId::rep>(i))));
  const auto forms = forms_of(planner_->target());
  const auto prepare = [&](const ModelLayout& layout, const RankBuffers* buffers) {
    return FingerprintVerifier::prepare(layout, buffers, group.transport, group.control,
                                        group.deadline(), forms, tensors);
  };
  if (consumes()) {
    into_verifiers_.push_back(RESHARD_TRY(prepare(planner_->target(), memory_->into_names)));
  } else {
    for (const RankBuffers* to : memory_->into)
      into_verifiers_.push_back(RESHARD_TRY(prepare(planner_->target(), to)));
  }
  from_verifier_ =
      RESHARD_TRY(prepare(planner_->source(), produces() ? memory_->from_names : memory_->from));
  return {};
}

Result<const ModelFingerprints*> PlannedMove::read_source(const JobGroup& group) {
  if (!produces())
    return from_verifier_->run({.threads = group.options.threads, .deadline = group.deadline()});
  std::span<const Fingerprint> fingerprints;
  if (memory_->from_check != nullptr) {
    auto read = memory_->from_check->read(from_verifier_->replicas(), *group.hooks.pool,
                                          group.control, group.deadline());
    if (!read) return end_group(group.control, std::move(read).error());
    fingerprints = *read;
  }
  return from_verifier_->run_with(fingerprints, group.deadline());
}

Result<const ModelFingerprints*> PlannedMove::read_target(const JobGroup& group, int copy) {
  if (!consumes())
    return into_verifiers_[index(copy)].run(
        {.threads = group.options.threads, .deadline = group.deadline()});
  TargetCheck& check = *memory_->into_check;
  if (auto begun = check.begin(copy, into_verifiers_[0].replicas(), group.hooks.pool->size());
      !begun)
    return end_group(group.control, std::move(begun).error());
  RESHARD_TRY(refits_[index(copy)].observe(&check));
  const auto fingerprints = check.fingerprints();
  if (!fingerprints) return end_group(group.control, fingerprints.error());
  return into_verifiers_[0].run_with(*fingerprints, group.deadline());
}

Result<> PlannedMove::compare(const ModelFingerprints& from, const ModelFingerprints& to) const {
  const ModelSpec& model = planner_->source().model();
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    if (!planner_->moves(TensorId(static_cast<TensorId::rep>(i)))) continue;
    const std::string& tensor = model.tensors()[i].name;
    for (const auto& [side, fingerprints] : {std::pair("source", &from), std::pair("target", &to)})
      if (const auto& found = fingerprints->tensors[i]; !found.agree)
        return fail(Code::corrupt, fmt::format("tensor '{}': {} replicas do not agree: {}", tensor,
                                               side, found.disagreement));
    if (!(from.tensors[i].fingerprint == to.tensors[i].fingerprint))
      return fail(Code::corrupt, fmt::format("tensor '{}': fingerprint of the source is {}, of the "
                                             "target {}",
                                             tensor, to_string(from.tensors[i].fingerprint),
                                             to_string(to.tensors[i].fingerprint)));
  }
  return {};
}

Result<> agree_on_converted(const JobGroup& group, const std::string& wrong) {
  const std::string mine =
      wrong.empty() ? wrong
                    : fmt::format("local tensor '{}' is not what its source converts to", wrong);
  const std::string first = RESHARD_TRY(agree_on_reason(mine, group.control, group.deadline()));
  if (!first.empty()) return fail(Code::corrupt, first);
  return {};
}

Result<> PlannedMove::check(const JobGroup& group, int copy) {
  RESHARD_TRY(prepare_verifiers(group));
  const ModelFingerprints* to = RESHARD_TRY(read_target(group, copy));
  const ModelFingerprints* from = RESHARD_TRY(read_source(group));
  RESHARD_TRY(compare(*from, *to));
  if (consumes()) return agree_on_converted(group, memory_->into_check->wrong());
  recorded_ = *to;
  return {};
}

Result<> PlannedMove::check_again(const JobGroup& group, int copy, bool recorded) {
  if (!recorded) return check(group, copy);
  RESHARD_TRY(prepare_verifiers(group));
  return compare(recorded_, *RESHARD_TRY(read_target(group, copy)));
}

}  // namespace reshard::conversion
