// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace reshard {

/// The state of a target's weights, as a reader sees it.
enum class TargetState : std::uint8_t {
  empty,  ///< nothing has been committed yet.
  whole,  ///< every byte of `version` is in place, verified as the session's options say.
  torn,   ///< in place only: a refit is in progress or failed; parts are new and parts are old.
};

/// "empty", "whole", "torn".
std::string_view name(TargetState state);

/// The version that a reader finds on one rank.
struct TargetVersion {
  TargetState state = TargetState::empty;
  /// Version of a whole target; of a torn one, the last version that was whole; -1 if none was.
  std::int64_t version = -1;
  int buffer = 0;  ///< which copy to read: 0 SessionSide::buffers, 1 SessionSide::back.
  friend constexpr bool operator==(const TargetVersion&, const TargetVersion&) = default;
};

/// Versions are 0 to this.
inline constexpr std::int64_t kMaxVersion = (std::int64_t{1} << 60) - 2;

/// The version that a rank publishes to readers of its target: one lock-free 8-byte atomic, so that
/// no reader sees one version with the state of another. It contains no pointers and may be placed
/// in memory that processes share (construct it there with placement new). Only the session's
/// thread writes it; any thread or process may read it.
///
/// To detect a refit during a read, call target_version() before reading weights and
/// target_version_after_reading() afterwards. If both are equal and whole, the bytes read are of
/// that version.
class PublishedVersion {
 public:
  PublishedVersion() = default;
  PublishedVersion(const PublishedVersion&) = delete;
  PublishedVersion& operator=(const PublishedVersion&) = delete;

  TargetVersion target_version() const;
  /// "" if a session wrote this, or it is zeros; else what it holds, and what to do. Readers find
  /// such a version torn.
  std::string trouble() const;
  /// target_version(), ordered after all earlier reads of this thread.
  TargetVersion target_version_after_reading() const;

  /// Publishes `version`. Readers that see it also see everything that this thread wrote before;
  /// nothing that this thread writes afterwards is visible to a reader that does not see it. So a
  /// target is torn before its first byte changes. @pre -1 <= version.version <= kMaxVersion, from
  /// 0 on if it is whole; version.buffer is 0 or 1; one that is empty is TargetVersion{}
  void set(TargetVersion version);

 private:
  std::atomic<std::uint64_t> bits_{0};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

}  // namespace reshard
