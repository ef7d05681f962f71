// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/planned_move.h"

#include <fmt/format.h>

#include "reshard/cuda/stream.h"
#include "reshard/exec/run_program.h"

namespace reshard::conversion {

Result<> PlannedMove::place(const JobMemory& memory, const JobGroup& group) {
  const auto choose = [](const MoveSide& side, const JobMemory::Forms& forms) {
    return side.between != nullptr ? side.between->buffers() : forms.in_form(side);
  };
  from_ = choose(plan_.from, memory.source);
  for (const JobMemory::Forms& copy : memory.target) {
    into_.push_back(choose(plan_.into, copy));
    if (plan_.into.between != nullptr) break;
  }
  for (MoveSide* side : {&plan_.from, &plan_.into})
    if (!side->planned.empty()) RESHARD_TRY(side->planned.reserve(group.me()));
  return add_checks(group);
}

ConvertedPlan PlannedMove::converted_plan(const MoveSide& side, bool is_target,
                                          const JobGroup& group) const {
  return {side.conversion, is_target, group.me(), group.unit_bytes, side.planned.buffers()};
}

Result<> PlannedMove::add_checks(const JobGroup& group) {
  if (plan_.into.converts())
    into_check_ = RESHARD_TRY(ConversionCheck::make(converted_plan(plan_.into, true, group)));
  if (!plan_.from.converts()) return {};
  from_check_ = RESHARD_TRY(ConversionCheck::make(converted_plan(plan_.from, false, group)));
  if (from_ == nullptr) return {};
  CompileOptions options;
  options.before = plan_.from.conversion;
  options.unit_bytes = group.unit_bytes;
  from_reader_ = std::make_shared<const Program>(
      RESHARD_TRY(compile_source(plan_.planner, group.me(), options)));
  return {};
}

Result<> PlannedMove::prepare(const JobGroup& group) {
  const RefitConversions conversions{plan_.from.conversion, plan_.into.conversion,
                                     group.unit_bytes};
  RankRefitHooks hooks = group.hooks;
  if (plan_.from.converts() || plan_.into.converts()) hooks.conversions = &conversions;
  for (const RankBuffers* to : into_)
    refits_.push_back(RESHARD_TRY(RankRefit::prepare(plan_.planner, from_, to, group.transport,
                                                     group.control, group.options, hooks)));
  return {};
}

Index PlannedMove::staging_bytes() const {
  Index most = 0;
  for (const RankRefit& refit : refits_) most = std::max(most, refit.staging_bytes());
  return most;
}

Result<> PlannedMove::prepare_verifiers(const JobGroup& group) {
  if (from_verifier_) return {};
  const Planner& planner = plan_.planner;
  std::vector<bool> tensors;
  for (Index i = 0; i < planner.source().model().size(); ++i)
    tensors.push_back(planner.moves(TensorId(static_cast<TensorId::rep>(i))));
  const auto forms = forms_of(planner.target());
  const auto prepare = [&](const ModelLayout& layout, const RankBuffers* buffers) {
    return FingerprintVerifier::prepare(layout, buffers, group.transport, group.control,
                                        group.deadline(), forms, tensors);
  };
  const auto &from = plan_.from, &into = plan_.into;
  if (into.converts()) {
    into_verifiers_.push_back(RESHARD_TRY(prepare(planner.target(), into.planned.buffers())));
  } else {
    for (const RankBuffers* to : into_)
      into_verifiers_.push_back(RESHARD_TRY(prepare(planner.target(), to)));
  }
  from_verifier_ =
      RESHARD_TRY(prepare(planner.source(), from.converts() ? from.planned.buffers() : from_));
  return {};
}

Result<const ModelFingerprints*> PlannedMove::read_source(const JobGroup& group) {
  if (!plan_.from.converts())
    return from_verifier_->run({.threads = group.options.threads, .deadline = group.deadline()});
  from_check_->begin(from_verifier_->replicas());
  if (from_reader_ != nullptr) {
    std::vector<HostBuffer> copies(from_->device() == nullptr ? 0 : from_reader_->buffers.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const ProgramBuffer& buffer = from_reader_->buffers[i];
      if (buffer.kind == ProgramBuffer::Kind::source && buffer.bytes > 0)
        copies[i] = RESHARD_TRY(cuda::Stream::borrow(from_->device(), from_->stream())
                                    .read(from_->at(group.me(), buffer.slot), buffer.bytes));
    }
    const auto memory = [&](const ProgramBuffer& buffer) {
      if (copies.empty()) return from_->at(group.me(), buffer.slot);
      return copies[static_cast<std::size_t>(&buffer - from_reader_->buffers.data())].data();
    };
    RESHARD_TRY(run_program(from_reader_,
                            {nullptr, group.control, *group.hooks.pool, reader_staging_}, memory,
                            group.deadline(), from_check_.get()));
  }
  return from_verifier_->run_with(RESHARD_TRY(from_check_->fingerprints()), group.deadline());
}

Result<const ModelFingerprints*> PlannedMove::read_target(const JobGroup& group, int copy) {
  if (!plan_.into.converts())
    return into_verifiers_[index(copy)].run(
        {.threads = group.options.threads, .deadline = group.deadline()});
  into_check_->begin(into_verifiers_[0].replicas());
  RESHARD_TRY(refits_[index(copy)].run(into_check_.get()));
  return into_verifiers_[0].run_with(RESHARD_TRY(into_check_->fingerprints()), group.deadline());
}

Result<> PlannedMove::compare(const ModelFingerprints& from, const ModelFingerprints& to) const {
  const ModelSpec& model = plan_.planner.source().model();
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    if (!plan_.planner.moves(TensorId(static_cast<TensorId::rep>(i)))) continue;
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

Result<> PlannedMove::compare_all(const JobGroup& group, int copy) {
  RESHARD_TRY(prepare_verifiers(group));
  const ModelFingerprints* to = RESHARD_TRY(read_target(group, copy));
  const ModelFingerprints* from = RESHARD_TRY(read_source(group));
  RESHARD_TRY(compare(*from, *to));
  if (!plan_.into.converts()) {
    recorded_ = *to;
    return {};
  }
  std::string wrong = into_check_->wrong();
  if (!wrong.empty())
    wrong = fmt::format("local tensor '{}' is not what its source converts to", wrong);
  const std::string first = RESHARD_TRY(agree_on_reason(wrong, group.control, group.deadline()));
  if (!first.empty()) return fail(Code::corrupt, first);
  return {};
}

Result<> PlannedMove::check(const JobGroup& group, int copy) {
  return or_end(group, compare_all(group, copy));
}

Result<> PlannedMove::check_recorded(const JobGroup& group, int copy) {
  return or_end(group, compare_recorded(group, copy));
}

Result<> PlannedMove::compare_recorded(const JobGroup& group, int copy) {
  RESHARD_TRY(prepare_verifiers(group));
  return compare(recorded_, *RESHARD_TRY(read_target(group, copy)));
}

}  // namespace reshard::conversion
