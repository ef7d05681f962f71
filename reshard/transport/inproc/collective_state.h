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

/// Where the control planes of one group meet: the collective calls, and the abort that all share.
/// Any thread may call anything; each rank calls the collective ones from one thread at a time.
class CollectiveState {
 public:
  using Gathered = std::vector<std::vector<std::byte>>;

  static constexpr std::string_view kBarrier = "barrier";

  explicit CollectiveState(int size);

  /// Takes part in the next collective. `what` names it, and must be the same on every rank. A
  /// kBarrier gathers nothing.
  Result<std::shared_ptr<const Gathered>> meet(Rank rank, std::string_view what,
                                               std::span<const std::byte> mine, Deadline deadline);
  /// The same of equally many bytes from each rank, into `all`, by rank; in memory of those before.
  Result<> meet_into(Rank rank, std::span<const std::byte> mine, std::span<std::byte> all,
                     Deadline deadline);
  Result<> quiesce(Rank rank, Deadline deadline);
  void close(Rank rank);
  /// Ranks that called close(), ascending.
  std::vector<Rank> closed() const;

  /// True when this was the first abort.
  bool abort(Rank rank, std::string_view reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// @pre aborted()
  Error abort_error() const;

 private:
  struct Member {
    bool here = false;  ///< in the collective under way.
    bool closed = false;
    std::uint64_t quiesced = 0;  ///< calls of quiesce() that did not give up.
  };

  Result<> may_meet(Rank rank, std::string_view what) const;
  /// The number of the collective that this was. @pre lock is held, as it is afterwards
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
  /// Of a collective by its number's last bit: nobody begins the next but one before all have read.
  std::array<Gathered, 2> into_;
  Error abort_error_;
  std::atomic<bool> aborted_{false};
};

}  // namespace reshard::inproc
