// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reshard/program/program.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// The exchanges of a program, which begin and end in its order. For the one thread that uses the
/// transport. Made once, run repeatedly; a run allocates nothing but what the transport does.
class ExchangeQueue {
 public:
  ExchangeQueue() = default;
  /// Borrows the program, and the transport (null if the program has no exchange). `address` is
  /// that of a buffer's first byte.
  ExchangeQueue(const Program& program, Transport* transport,
                const std::function<std::byte*(BufferId)>& address);

  /// Begins a run.
  void restart() { over_ = begun_ = 0; }
  /// The exchange to begin next; none if all have begun.
  std::optional<StepId> next() const;
  /// Begins it. Errors: the transport's.
  Result<> begin();

  bool is_flying() const { return over_ < begun_; }
  bool all_over() const { return over_ == steps_.size(); }
  /// The oldest exchange in progress. @pre is_flying()
  StepId oldest() const { return steps_[over_]; }
  /// True once it is complete; or waits for that. Errors: the transport's.
  Result<bool> test() { return events_[over_]->test(); }
  Result<> wait(Deadline deadline) { return events_[over_]->wait(deadline); }
  /// Ends it. @pre it is complete
  StepId end();
  /// After an error: withdraws all messages in progress.
  void withdraw();

 private:
  Transport* transport_ = nullptr;
  std::vector<StepId> steps_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  std::vector<std::size_t> first_send_, first_recv_;  ///< by exchange.
  std::vector<std::unique_ptr<Event>> events_;        ///< by exchange.
  std::size_t over_ = 0, begun_ = 0;                  ///< exchanges that are complete; that began.
};

}  // namespace reshard
