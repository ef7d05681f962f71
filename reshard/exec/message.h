// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/exec/direct.h"
#include "reshard/transport/transport.h"

namespace reshard {

struct MessageOptions {
  Index staging_bytes =
      Index{64} << 20;  ///< most staging memory of this rank, sends and receives together.
  double seconds = 60;  ///< deadline of one run.
  Progress progress;
};

/// One rank's part of a refit over a transport that carries messages: pack, exchange in rounds,
/// unpack, with staging bounded by the options. Collective: every rank of the group prepares and
/// runs together, in the same order.
class MessageRefit {
 public:
  /// Compares the plan's digest over all ranks before anything else. `source` and `target` may lack
  /// this rank. Errors: ranks disagree on the plan (both digests named); memory missing; the
  /// transport failed.
  static Result<MessageRefit> prepare(const Planner& planner, const RankBuffers* source,
                                      const RankBuffers* target, Transport& transport,
                                      ControlPlane& control, MessageOptions options = {});
  MessageRefit(MessageRefit&&) noexcept;
  MessageRefit& operator=(MessageRefit&&) noexcept;
  ~MessageRefit();

  /// Moves this rank's bytes; returns when its own sends and receives are done. On error all ranks
  /// get one.
  Result<RefitReport> run();
  /// Bytes of staging memory in use.
  Index staging_bytes() const;

 private:
  struct State;
  explicit MessageRefit(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
