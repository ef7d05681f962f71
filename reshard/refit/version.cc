// SPDX-License-Identifier: Apache-2.0
// The published 64 bits, from the lowest: two of state, one of the copy, then version + 1. All
// zeros is `empty`, so zeroed shared memory is valid.
#include "reshard/refit/version.h"

#include <fmt/format.h>

#include <optional>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"

namespace reshard {
namespace {

constexpr int kStateBits = 2, kBufferBits = 1;

constexpr TargetVersion kUnknown{TargetState::torn, -1, 0};

/// None for what no session writes.
std::optional<TargetVersion> known(std::uint64_t bits) {
  if (bits == 0) return TargetVersion{};
  TargetVersion out;
  const std::uint64_t state = bits & ((1U << kStateBits) - 1);
  out.state = static_cast<TargetState>(state);
  out.buffer = static_cast<int>(bits >> kStateBits & 1);
  out.version = static_cast<std::int64_t>(bits >> (kStateBits + kBufferBits)) - 1;
  const bool is_set =
      out.state == TargetState::torn || (out.state == TargetState::whole && out.version >= 0);
  if (out.version > kMaxVersion || !is_set) return std::nullopt;
  return out;
}

TargetVersion unpack(std::uint64_t bits) { return known(bits).value_or(kUnknown); }

}  // namespace

std::string_view name(TargetState state) {
  switch (state) {
    case TargetState::empty: return "empty";
    case TargetState::whole: return "whole";
    case TargetState::torn: return "torn";
  }
  return "torn";
}

TargetVersion PublishedVersion::target_version() const {
  return unpack(bits_.load(std::memory_order_acquire));
}

std::string PublishedVersion::trouble() const {
  const std::uint64_t bits = bits_.load(std::memory_order_acquire);
  if (known(bits)) return "";
  return fmt::format(
      "the published version is {}, which no session writes; its 8 bytes must be "
      "zeros at first, and nothing else may write them",
      hex(bits));
}

TargetVersion PublishedVersion::target_version_after_reading() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return unpack(bits_.load(std::memory_order_relaxed));
}

void PublishedVersion::set(TargetVersion version) {
  RESHARD_CHECK(version.version >= -1 && version.version <= kMaxVersion);
  RESHARD_CHECK(version.buffer == 0 || version.buffer == 1);
  RESHARD_CHECK(version.state == TargetState::torn || version == TargetVersion{} ||
                (version.state == TargetState::whole && version.version >= 0));
  const std::uint64_t bits = static_cast<std::uint64_t>(version.version + 1)
                                 << (kStateBits + kBufferBits) |
                             static_cast<std::uint64_t>(version.buffer) << kStateBits |
                             static_cast<std::uint64_t>(version.state);
  // Weights are also written with streaming stores, which only full fences order.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bits_.store(bits, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace reshard
