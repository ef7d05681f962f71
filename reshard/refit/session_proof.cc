// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "reshard/exec/rank_proof.h"
#include "reshard/refit/session_state.h"

namespace reshard {

Result<> Session::State::compare(const Prints& from, const Prints& to) const {
  const ModelSpec& model = source.values()->model();
  for (std::size_t i = 0; i < job->moved().size(); ++i) {
    if (!job->moved()[i]) continue;
    const std::string& tensor = model.tensors()[i].name;
    for (const auto& [side, prints] : {std::pair("source", &from), std::pair("target", &to)})
      if (const auto& print = prints->tensors[i]; !print.agree)
        return fail(Code::corrupt, fmt::format("tensor '{}': {} replicas do not agree: {}", tensor,
                                               side, print.disagreement));
    if (!(from.tensors[i].print == to.tensors[i].print))
      return fail(Code::corrupt, fmt::format("tensor '{}': fingerprint of the source is {}, of the "
                                             "target {}",
                                             tensor, to_string(from.tensors[i].print),
                                             to_string(to.tensors[i].print)));
  }
  return {};
}

Result<> Session::State::prepare_proofs() {
  if (source_proof) return {};
  const auto forms = forms_of(*target.values());
  const auto prepare = [&](const SessionSide& side, const RankBuffers* buffers) {
    return RankProof::prepare(*side.values(), buffers, transport, control, deadline(), forms);
  };
  target_proofs[0] = RESHARD_TRY(prepare(target, target.buffers));
  if (options.buffering == Buffering::doubled)
    target_proofs[1] = RESHARD_TRY(prepare(target, target.back));
  source_proof = RESHARD_TRY(prepare(source, source.buffers));
  return {};
}

Result<const Prints*> Session::State::read(RankProof& proof) {
  return proof.run({.threads = options.refit.threads, .deadline = deadline()});
}

Result<> Session::State::check(int copy) {
  RESHARD_TRY(prepare_proofs());
  const Prints* from = RESHARD_TRY(read(*source_proof));
  const Prints* to = RESHARD_TRY(read(*target_proofs[static_cast<std::size_t>(copy)]));
  RESHARD_TRY(compare(*from, *to));
  committed = *to;
  return {};
}

Result<> Session::State::prove() {
  if (finished)
    return fail(Code::invalid_argument, "this session's group is finished: " + finished->message);
  const auto look = [&]() -> Result<> {
    RESHARD_TRY(prepare_proofs());
    const int copy = has_target() && target_proofs[1] ? word->held().buffer : 0;
    const Prints* to = RESHARD_TRY(read(*target_proofs[static_cast<std::size_t>(copy)]));
    if (is_committed) return compare(committed, *to);
    return compare(*RESHARD_TRY(read(*source_proof)), *to);
  };
  auto done = look();
  if (!done && done.error().code != Code::corrupt) return finish(std::move(done).error());
  return done;
}

}  // namespace reshard
