// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "reshard/transport/transport.h"

namespace reshard {

/// One thing that goes wrong on one rank. Nothing depends on time: the same program gives the same
/// faults.
struct Fault {
  enum class Kind {
    drop,      ///< the message is never sent.
    delay,     ///< the message is sent only in the `polls`-th test() of its event (wait() counts
               ///< through).
    reorder,   ///< the step's messages are posted in a random order, in two halves.
    truncate,  ///< the message is sent without its last byte. An empty message is left alone.
    corrupt,   ///< one random bit of the message is flipped. An empty message is left alone.
    kill,      ///< the rank dies before the message: its transport closes and `on_kill` is called.
  };
  Kind kind = Kind::drop;
  /// The message that is hit: its position, from 0, in the sends this rank gave to exchange() so
  /// far. reorder: the step that holds it.
  std::uint64_t message = 0;
  std::uint64_t polls = 1;  ///< for delay, at least 1.
};

/// What goes wrong on one rank.
struct FaultPlan {
  std::vector<Fault> faults;  ///< in any order; at most one for a message counts, the first.
  std::uint64_t seed = 0;     ///< of the random choices.
  std::function<void()> on_kill =
      nullptr;  ///< to close the rank's control plane as well, may be empty.
};

/// A transport that passes everything on to `inner` and lets the plan's faults happen to what is
/// sent. For tests of what stands on a transport. share(), open() and get() are passed on
/// as they are.
std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, FaultPlan plan);

/// `count` faults of these kinds on the first `messages` messages of a rank, drawn from the seed.
/// @pre messages > 0 and kinds is not empty, unless count is 0
FaultPlan random_faults(std::uint64_t seed, Rank rank, std::span<const Fault::Kind> kinds,
                        std::uint64_t count, std::uint64_t messages);

}  // namespace reshard
