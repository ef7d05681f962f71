// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/transport.h"

namespace reshard::inproc {

/// Bytes that one thread copies before it looks up again: at an abort, at a deadline, at work to
/// share.
inline constexpr std::size_t kGrain = 256 * 1024;

/// Grains of a message; an empty message is one.
constexpr std::int64_t grains(std::size_t bytes) {
  return bytes == 0 ? 1 : static_cast<std::int64_t>((bytes - 1) / kGrain + 1);
}

/// One exchange as its peers see it. Others hold plain pointers to it, so it may go only when
/// `left` is 0: each grain is counted until it is copied or withdrawn, and the count is the last
/// thing a peer touches.
struct Step {
  Rank rank;
  std::vector<Send> sends;  ///< ordered by `to`.
  std::vector<Recv> recvs;
  std::atomic<std::int64_t> left{0};  ///< grains of all messages, neither whole nor withdrawn.

  /// Keeps the first error. Does not touch `left`.
  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }

  std::optional<Error> error() const {
    if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return error_;
  }

  /// Forgets the error of an earlier use. @pre no peer has this step
  void forgive() {
    error_.reset();
    failed_.store(false, std::memory_order_relaxed);
  }

  /// True when these were the last grains: the owner must then be woken, and this step not touched
  /// again.
  [[nodiscard]] bool count_down(std::int64_t n) {
    return left.fetch_sub(n, std::memory_order_acq_rel) == n;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  std::atomic<bool> failed_{false};
};

}  // namespace reshard::inproc
