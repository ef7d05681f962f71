// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "reshard/base/log/log.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/program/program.h"
#include "reshard/transport/control.h"

namespace reshard {

/// The values that all ranks agree on before a refit.
struct Agreed {
  RankRefitOptions options;  ///< this rank's, with the common staging_bytes and in_place_bytes.
  bool direct = false;       ///< some rank's transport can reach peers' memory.
};

/// Collective. Compares the plan's digest and the path over all ranks. Errors, identical on all
/// ranks: `invalid_argument` if plans (both digests are named) or paths differ, the plan has more
/// ranks than the group, or staging is too small. Also those of all_gather().
Result<Agreed> agree(const Planner& planner, const RankRefitOptions& options, bool direct,
                     ControlPlane& control, Deadline deadline);

/// Collective. Each rank passes "" or the reason why it cannot. Returns the reason of the lowest
/// rank that has one, as "rank 3: ...", or "".
Result<std::string> agree_on_reason(const std::string& mine, ControlPlane& control,
                                    Deadline deadline);

/// Collective. Compiles a program whose exchanges are rounds with the same round_bits on all ranks:
/// the smallest that any rank's memory asks for. `compile` gets CompileOptions::round_bits. Errors:
/// those of `compile`, after which the caller ends the group; those of all_gather().
Result<Program> compile_in_rounds(const std::function<Result<Program>(int round_bits)>& compile,
                                  ControlPlane& control, Deadline deadline);

/// How long a failed rank waits until peers no longer access its memory. Half a second less than
/// what refits promise, for a control plane that does not answer.
inline constexpr std::chrono::milliseconds kQuiesceTimeout{1500};

/// Aborts the group with this error. Returns the error once no peer accesses this rank's memory any
/// more; after kQuiesceTimeout it returns anyway, and the error says that the memory may still be
/// in use. Every rank calls it once: whoever calls what has ended the group only passes the error
/// on.
inline tl::unexpected<Error> end_group(ControlPlane& control, Error error) {
  log_event(LogLevel::info, "exec", control.rank().value(),
            [&] { return "aborts the group: " + error.message; });
  control.abort(error.message);
  if (const auto left = control.quiesce(Deadline::after(kQuiesceTimeout)); !left)
    error.message += "; and its memory may still be in use: " + left.error().message;
  return tl::unexpected(std::move(error));
}

}  // namespace reshard
