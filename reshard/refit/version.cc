// SPDX-License-Identifier: Apache-2.0
// The word, from its lowest bit: two bits of state, one of the copy, the version + 1. All zeros is
// `empty`, so that fresh shared memory is a valid word.
#include "reshard/refit/version.h"

#include "reshard/base/check.h"

namespace reshard {
namespace {

constexpr int kStateBits = 2, kBufferBits = 1;

TargetVersion unpack(std::uint64_t word) {
  TargetVersion out;
  out.state = static_cast<TargetState>(word & ((1U << kStateBits) - 1));
  out.buffer = static_cast<int>(word >> kStateBits & 1);
  out.version = static_cast<std::int64_t>(word >> (kStateBits + kBufferBits)) - 1;
  return out;
}

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
  return unpack(word_.load(std::memory_order_acquire));
}

TargetVersion PublishedVersion::target_version_after_reading() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return unpack(word_.load(std::memory_order_relaxed));
}

void PublishedVersion::set(TargetVersion held) {
  RESHARD_CHECK(held.version >= -1 && held.version <= kMostVersion);
  RESHARD_CHECK(held.buffer == 0 || held.buffer == 1);
  const std::uint64_t word = static_cast<std::uint64_t>(held.version + 1)
                                 << (kStateBits + kBufferBits) |
                             static_cast<std::uint64_t>(held.buffer) << kStateBits |
                             static_cast<std::uint64_t>(held.state);
  // Weights are written by streaming stores too, which only a full fence orders, on both sides.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  word_.store(word, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace reshard
