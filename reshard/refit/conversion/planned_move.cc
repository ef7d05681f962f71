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

Result<> PlannedMove::prepare(const JobGroup& group, const RankBuffers* from,
                              std::vector<const RankBuffers*> into) {
  from_ = from;
  into_ = std::move(into);
  for (const RankBuffers* to : into_)
    refits_.push_back(RESHARD_TRY(RankRefit::prepare(*planner_, from, to, group.transport,
                                                     group.control, group.options, group.hooks)));
  return {};
}

Result<> PlannedMove::prepare_tiles(const JobGroup& group, const RankBuffers* from,
                                    const RankBuffers& names, TilePass& tiles) {
  JobGroup direct = group;
  direct.options.path = RefitPath::direct;
  direct.hooks.tiles = &tiles;
  tiles_ = &tiles;
  return prepare(direct, from, {&names});
}

Result<> PlannedMove::run(int copy, SessionReport& report) {
  if (tiles_ != nullptr) tiles_->begin(copy);
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
  for (const RankBuffers* to : into_)
    into_verifiers_.push_back(RESHARD_TRY(prepare(planner_->target(), to)));
  from_verifier_ = RESHARD_TRY(prepare(planner_->source(), from_));
  return {};
}

Result<const ModelFingerprints*> PlannedMove::read(const JobGroup& group,
                                                   FingerprintVerifier& verifier) {
  return verifier.run({.threads = group.options.threads, .deadline = group.deadline()});
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

Result<> PlannedMove::gather_again(const JobGroup& group, int copy) {
  if (tiles_ == nullptr) return {};
  if (auto done = prepare_verifiers(group); !done)
    return end_group(group.control, std::move(done).error());
  tiles_->begin_check(copy, into_verifiers_[0].replicas());
  RESHARD_TRY(refits_[0].run());
  return {};
}

Result<> PlannedMove::check_tiles(const JobGroup& group) {
  const ModelFingerprints* from = RESHARD_TRY(read(group, *from_verifier_));
  auto fingerprints = tiles_->fingerprints();
  if (!fingerprints) {
    group.control.abort(fingerprints.error().message);
    return tl::unexpected(std::move(fingerprints).error());
  }
  const ModelFingerprints* to =
      RESHARD_TRY(into_verifiers_[0].run_with(*fingerprints, group.deadline()));
  RESHARD_TRY(compare(*from, *to));
  return agree_on_converted(group, tiles_->wrong());
}

Result<> PlannedMove::check(const JobGroup& group, int copy) {
  RESHARD_TRY(prepare_verifiers(group));
  if (tiles_ != nullptr) return check_tiles(group);
  const ModelFingerprints* from = RESHARD_TRY(read(group, *from_verifier_));
  const ModelFingerprints* to = RESHARD_TRY(read(group, into_verifiers_[index(copy)]));
  RESHARD_TRY(compare(*from, *to));
  recorded_ = *to;
  return {};
}

Result<> PlannedMove::check_again(const JobGroup& group, int copy, bool recorded) {
  RESHARD_TRY(prepare_verifiers(group));
  const ModelFingerprints* to = RESHARD_TRY(read(group, into_verifiers_[index(copy)]));
  if (recorded) return compare(recorded_, *to);
  return compare(*RESHARD_TRY(read(group, *from_verifier_)), *to);
}

}  // namespace reshard::conversion
