// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/transport/deadline.h"

namespace reshard::inproc {

/// Wakes the threads that wait for something to change at one rank. Any thread may call anything.
///
/// Read count(), look at the state, and wait for a later count: a change between look and wait is
/// not lost, because whoever changes the state rings after it.
class EventCount {
 public:
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }

  void ring() {
    {
      const std::lock_guard lock(mutex_);
      count_.fetch_add(1, std::memory_order_release);
    }
    changed_.notify_all();
  }

  /// Returns once count() differs from `seen`, or at the deadline.
  void wait(std::uint64_t seen, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto rung = [&] { return count() != seen; };
    if (deadline.is_never()) {
      changed_.wait(lock, rung);
    } else {
      changed_.wait_until(lock, deadline.time(), rung);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::uint64_t> count_{0};
};

/// Ranks to wake, collected while a lock is held and rung after it: one ring for a rank, not for a
/// message.
class Wake {
 public:
  explicit Wake(int num_ranks) : marked_(static_cast<std::size_t>(num_ranks), false) {}

  void add(Rank rank) {
    if (marked_[rank.index()]) return;
    marked_[rank.index()] = true;
    ranks_.push_back(rank);
  }

  /// Rings bells[rank] for each rank added since the last call.
  template <class Bells>
  void ring(Bells& bells) {
    for (const Rank rank : ranks_) {
      marked_[rank.index()] = false;
      bells[rank.index()].ring();
    }
    ranks_.clear();
  }

 private:
  std::vector<bool> marked_;
  std::vector<Rank> ranks_;
};

}  // namespace reshard::inproc
