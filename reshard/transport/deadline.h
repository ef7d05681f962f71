// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>

namespace reshard {

/// The point in time at which a wait gives up, on the monotonic clock. Nested calls receive it
/// unchanged, so that an operation has one time budget however many waits it makes.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit constexpr Deadline(Clock::time_point time) : time_(time) {}

  /// No limit; later than every other deadline.
  static constexpr Deadline never() { return Deadline(Clock::time_point::max()); }

  /// The deadline `time` from now, as in `Deadline::after(5s)`: now if negative, never() if beyond
  /// the range of the clock.
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

  /// Earlier deadlines compare less: `std::min(a, b)` is the stricter one.
  friend constexpr auto operator<=>(Deadline, Deadline) = default;

 private:
  Clock::time_point time_;
};

}  // namespace reshard
