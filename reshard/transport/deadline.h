// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>

namespace reshard {

/// The moment after which a wait gives up, on the monotonic clock. Passed down unchanged through
/// nested calls, so that a whole operation has one budget however many waits it makes.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit constexpr Deadline(Clock::time_point time) : time_(time) {}

  /// No limit. Later than every other deadline.
  static constexpr Deadline never() { return Deadline(Clock::time_point::max()); }

  /// `time` from now, as in `Deadline::after(5s)`; a negative time is now, one beyond the clock is
  /// never.
  static Deadline after(std::chrono::duration<double> time) {
    const Clock::time_point now = Clock::now();
    const std::chrono::duration<double> room = Clock::time_point::max() - now;
    if (!(time.count() > 0)) return Deadline(now);
    if (time >= room) return never();
    return Deadline(now + std::chrono::duration_cast<Clock::duration>(time));
  }

  constexpr bool is_never() const { return *this == never(); }
  bool expired() const { return !is_never() && Clock::now() >= time_; }
  constexpr Clock::time_point time() const { return time_; }

  /// The earlier deadline is the smaller: `std::min(a, b)` is the tighter of two.
  friend constexpr auto operator<=>(Deadline, Deadline) = default;

 private:
  Clock::time_point time_;
};

}  // namespace reshard
