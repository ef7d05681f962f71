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

Result<> Session::State::check(int copy) {
  const RankProofOptions how{.threads = options.refit.threads, .deadline = deadline()};
  const auto forms = forms_of(*target.values());
  const RankBuffers* now = copy == 0 ? target.buffers : target.back;
  const Prints from = RESHARD_TRY(
      rank_fingerprints(*source.values(), source.buffers, transport, control, how, forms));
  Prints to = RESHARD_TRY(rank_fingerprints(*target.values(), now, transport, control, how));
  RESHARD_TRY(compare(from, to));
  committed = std::move(to);
  return {};
}

Result<> Session::State::prove() {
  if (finished)
    return fail(Code::invalid_argument, "this session's group is finished: " + finished->message);
  const RankProofOptions how{.threads = options.refit.threads, .deadline = deadline()};
  const int copy = has_target() ? word->held().buffer : 0;
  const auto look = [&]() -> Result<> {
    const RankBuffers* now = copy == 0 ? target.buffers : target.back;
    const Prints to =
        RESHARD_TRY(rank_fingerprints(*target.values(), now, transport, control, how));
    if (committed) return compare(*committed, to);
    const auto forms = forms_of(*target.values());
    return compare(RESHARD_TRY(rank_fingerprints(*source.values(), source.buffers, transport,
                                                 control, how, forms)),
                   to);
  };
  auto done = look();
  if (!done && done.error().code != Code::corrupt) return finish(std::move(done).error());
  return done;
}

}  // namespace reshard
