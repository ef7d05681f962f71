// SPDX-License-Identifier: Apache-2.0
// The symmetric memory of a PE. Every PE has the same parts at the same offsets:
//
//   words     for each peer, what that peer tells this PE (PeerWords)
//   incoming  for each peer, kSlots slots, into which that peer puts segments
//   outgoing  for each peer, kSlots slots, from which this PE puts segments that the library cannot
//             take from where they are
//
// A message is cut into segments of at most one slot. The segments from one PE to another are
// numbered; segment i takes slot i mod kSlots, once the receiver has given back the slot's segment
// before. So a word has one writer, who changes it only after the reader has answered its last
// value, which the reader cannot do before that has arrived: it does not matter in which order
// writes to different words arrive.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/base/hash.h"
#include "reshard/base/result.h"

namespace reshard::nvshmem {

/// Two: while the receiver empties one slot, the sender fills the other.
inline constexpr int kSlots = 2;
/// The most bytes that one put moves.
inline constexpr std::size_t kMaxSegment = std::size_t{256} << 20;

/// The words of a peer about one slot of each direction. Zero at first.
struct SlotWords {
  /// The id and bytes of the message whose first segment is in this PE's incoming slot. By
  /// exclusive or with their keys (draw()) they differ from the slot's words before, so that
  /// nothing is taken for them that has not arrived. Valid if `check` is segment_check() of them.
  std::uint64_t id, bytes;
  std::uint64_t check;  ///< of the segment in the slot.
  /// The answer to the segment that this PE put into the peer's slot: its check once the peer has
  /// copied it out, or refusal_of() its check if the peer expects a message of `wanted` bytes.
  std::uint64_t credit, wanted;
};

/// The words that one peer writes to this PE.
struct PeerWords {
  SlotWords slots[kSlots];
  std::uint64_t ended;  ///< not kGoesOn: nothing else comes from this peer any more.
  std::uint64_t unused[5];
};
static_assert(sizeof(PeerWords) == 128);

/// Values of PeerWords::ended.
inline constexpr std::uint64_t kGoesOn = 0, kClosed = 1, kFailed = 2;

/// Numbers that are drawn, in effect, for each segment and use of it. `group` differs between
/// groups of the same processes, so that nothing of an earlier one is taken for a segment.
enum class Draw : std::uint64_t { check, id_key, bytes_key };
constexpr std::uint64_t draw(Draw use, std::uint64_t group, std::uint64_t number) {
  return mix64(mix64(mix64(group) + static_cast<std::uint64_t>(use)) ^ number);
}

/// The number that a segment's arrival is signalled with. Never 0.
constexpr std::uint64_t segment_check(std::uint64_t group, std::uint64_t number, std::uint64_t id,
                                      std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t x = draw(Draw::check, group, number);
  for (const std::uint64_t part : {id, bytes, offset}) x = mix64(x ^ part);
  return x == 0 ? 1 : x;
}

constexpr std::uint64_t refusal_of(std::uint64_t check, std::uint64_t wanted) {
  return mix64(check ^ mix64(wanted));
}

/// The offsets of the parts of the symmetric memory. A value.
class Staging {
 public:
  /// Divides at most `bytes` among `pes` PEs. Errors: `invalid_argument` if a slot would have less
  /// than 4 KiB (says how many bytes it takes).
  static Result<Staging> divide(std::size_t bytes, int pes);

  std::size_t slot_bytes() const { return slot_; }
  std::size_t total_bytes() const { return incoming(2 * pes_, 0); }
  std::size_t words_bytes() const { return static_cast<std::size_t>(pes_) * sizeof(PeerWords); }

  /// Offsets, in bytes.
  std::size_t words(int peer) const { return static_cast<std::size_t>(peer) * sizeof(PeerWords); }
  std::size_t incoming(int peer, int slot) const {
    const std::size_t index =
        static_cast<std::size_t>(peer) * kSlots + static_cast<std::size_t>(slot);
    return words_area() + index * slot_;
  }
  std::size_t outgoing(int peer, int slot) const { return incoming(pes_ + peer, slot); }

 private:
  Staging(int pes, std::size_t slot) : pes_(pes), slot_(slot) {}
  std::size_t words_area() const { return (words_bytes() + kAlign - 1) / kAlign * kAlign; }

  static constexpr std::size_t kAlign = 512;
  int pes_;
  std::size_t slot_;
};

}  // namespace reshard::nvshmem
