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

/// An event count: lets threads wait until some state of one rank has changed. Thread-safe.
///
/// Read count(), check the state, then wait() for a later count. No change between the check and
/// the wait is lost, because whoever changes the state calls notify() afterwards.
class EventCount {
 public:
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }

  void notify() {
    {
      const std::lock_guard lock(mutex_);
      count_.fetch_add(1, std::memory_order_release);
    }
    changed_.notify_all();
  }

  /// Returns once count() differs from `seen`, or at the deadline.
  void wait(std::uint64_t seen, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto is_new = [&] { return count() != seen; };
    if (deadline.is_never()) {
      changed_.wait(lock, is_new);
    } else {
      changed_.wait_until(lock, deadline.time(), is_new);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::uint64_t> count_{0};
};

/// The ranks to wake, collected under a lock and notified after it: once per rank, not once per
/// message.
class Wake {
 public:
  explicit Wake(int num_ranks) : marked_(static_cast<std::size_t>(num_ranks), false) {}

  void add(Rank rank) {
    if (marked_[rank.index()]) return;
    marked_[rank.index()] = true;
    ranks_.push_back(rank);
  }

  /// Notifies event_counts[rank] for each rank added since the last call.
  template <class EventCounts>
  void notify(EventCounts& event_counts) {
    for (const Rank rank : ranks_) {
      marked_[rank.index()] = false;
      event_counts[rank.index()].notify();
    }
    ranks_.clear();
  }

 private:
  std::vector<bool> marked_;
  std::vector<Rank> ranks_;
};

}  // namespace reshard::inproc
