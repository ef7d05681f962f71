// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace reshard {

/// What a reader of a target finds.
enum class TargetState : std::uint8_t {
  empty,  ///< nothing was committed yet.
  whole,  ///< every byte of `version` is there, checked as the session was told to check.
  torn,   ///< in place: a refit is under way or failed; parts are new and parts old.
};

/// "empty", "whole", "torn".
std::string_view name(TargetState state);

/// What is readable on one rank.
struct TargetVersion {
  TargetState state = TargetState::empty;
  /// Of the whole target; of a torn one, the last that was whole; -1 where none was.
  std::int64_t version = -1;
  int buffer = 0;  ///< which of two copies to read: 0 SessionSide::buffers, 1 SessionSide::back.
  friend constexpr bool operator==(const TargetVersion&, const TargetVersion&) = default;
};

/// Versions are 0 to this.
inline constexpr std::int64_t kMostVersion = (std::int64_t{1} << 60) - 2;

/// The word that readers look at while a session writes: one lock-free atomic of eight bytes, so
/// that no reader ever sees one version with another's state. It has no pointers and may lie in
/// memory that processes share (construct it there with placement new). Written by the session's
/// thread, read from any thread or process.
///
/// A reader that must not be overtaken reads target_version() before and after: where both are
/// equal and whole, what it read in between was that version. Its second read is ordered after what
/// it read when it was made with target_version_after_reading().
class PublishedVersion {
 public:
  PublishedVersion() = default;
  PublishedVersion(const PublishedVersion&) = delete;
  PublishedVersion& operator=(const PublishedVersion&) = delete;

  TargetVersion target_version() const;
  /// target_version(), after all of this thread's earlier reads.
  TargetVersion target_version_after_reading() const;

  /// What this thread wrote before is seen by whoever sees `held`, and what it writes after set()
  /// is seen by nobody who does not: so a target is torn before its first byte changes. @pre
  /// -1 <= version <= kMostVersion, buffer is 0 or 1
  void set(TargetVersion held);

 private:
  std::atomic<std::uint64_t> word_{0};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

}  // namespace reshard
