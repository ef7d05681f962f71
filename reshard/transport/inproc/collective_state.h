// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"
#include "reshard/transport/transport.h"

namespace reshard::inproc {

/// The shared state behind the control planes of one group: the collective call in progress and the
/// abort. Thread-safe; each rank makes collective calls from one thread at a time.
class CollectiveState {
 public:
  using Gathered = std::vector<std::vector<std::byte>>;

  static constexpr std::string_view kBarrier = "barrier";

  explicit CollectiveState(int size);

  /// Takes part in the next collective call, which `what` names alike on every rank. kBarrier
  /// gathers nothing.
  Result<std::shared_ptr<const Gathered>> meet(Rank rank, std::string_view what,
                                               std::span<const std::byte> mine, Deadline deadline);
  /// Gathers equally many bytes of each rank into `all`, by rank. Reuses the memory of earlier
  /// calls.
  Result<> meet_into(Rank rank, std::span<const std::byte> mine, std::span<std::byte> all,
                     Deadline deadline);
  Result<> quiesce(Rank rank, Deadline deadline);
  void close(Rank rank);
  /// The ranks that called close(), ascending.
  std::vector<Rank> closed() const;

  /// True if this was the first abort.
  bool abort(Rank rank, std::string_view reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// @pre aborted()
  Error abort_error() const;

 private:
  struct Member {
    bool here = false;  ///< in the collective in progress.
    bool closed = false;
    std::uint64_t quiesced = 0;  ///< calls of quiesce() that did not time out.
  };

  Result<> may_meet(Rank rank, std::string_view what) const;
  /// Returns the number of the collective. @pre the lock is held, as it is afterwards
  Result<std::uint64_t> join(std::unique_lock<std::mutex>& lock, Rank rank, std::string_view what,
                             std::span<const std::byte> mine, Deadline deadline);
  void complete(std::string_view what);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::string_view what_;
  std::size_t num_here_ = 0;
  std::uint64_t done_ = 0;  ///< collectives completed.
  Gathered given_;
  std::shared_ptr<const Gathered> gathered_;
  /// The results of the last two collectives, by the parity of their numbers: no rank starts the
  /// next but one before all have read.
  std::array<Gathered, 2> into_;
  Error abort_error_;
  std::atomic<bool> aborted_{false};
};

}  // namespace reshard::inproc
