// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "reshard/transport/transport.h"

namespace reshard {

/// A fault on one rank. Faults do not depend on time, so every run of a program has the same ones.
struct Fault {
  enum class Kind {
    drop,      ///< the message is never sent.
    delay,     ///< the message is sent in the `polls`-th test() of its event; wait() counts, too.
    reorder,   ///< the messages of the exchange are posted in random order, in two halves.
    truncate,  ///< the message is sent without its last byte; no effect if empty.
    corrupt,   ///< one random bit of the message is flipped; no effect if empty.
    kill,      ///< before the message the transport closes and `on_kill` is called.
  };
  Kind kind = Kind::drop;
  /// The affected message: its index among all sends that this rank has passed to exchange(). For
  /// reorder, the exchange that contains it.
  std::uint64_t message = 0;
  std::uint64_t polls = 1;  ///< for delay, at least 1.
};

/// The faults of one rank.
struct FaultPlan {
  std::vector<Fault> faults;  ///< in any order; the first one for a message counts.
  std::uint64_t seed = 0;     ///< of all random choices.
  std::function<void()> on_kill =
      nullptr;  ///< for example closes the control plane of the rank; may be empty.
};

/// A transport that forwards all calls to `inner` and injects faults into the messages that it
/// sends. For tests of code that uses a transport. share(), open() and get() are unaffected.
std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, FaultPlan plan);

/// Draws `count` faults of these kinds, among the first `messages` messages of a rank, from the
/// seed.
/// @pre messages > 0 and kinds is not empty, unless count is 0
FaultPlan random_faults(std::uint64_t seed, Rank rank, std::span<const Fault::Kind> kinds,
                        std::uint64_t count, std::uint64_t messages);

}  // namespace reshard
