// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::shm {

/// What a record in a ring is for.
enum class Kind : std::uint32_t {
  frame = 1,  ///< the engine's.
  chunk,      ///< a piece of a bulk is in a slot of the sender's: Chunk.
  credit,     ///< a slot of the receiver's is empty again: its number.
};

struct Chunk {
  std::uint64_t tag;
  std::uint32_t slot;
  std::uint32_t bytes;
};

/// Slots of a segment by which bulks are staged, where no memory can be read across: bytes of each.
/// Two are on their way while two are copied; larger ones leave the caches.
inline constexpr std::size_t kSlotBytes = std::size_t{128} << 10;
inline constexpr std::uint32_t kSlots = 8;
/// Bytes of the engine's largest frame.
inline constexpr std::size_t kMaxFrame = std::size_t{16} << 10;

/// One rank's mailbox: memory that all ranks of the host map. The owner reads its rings, each peer
/// writes its own. Nobody trusts what another wrote there.
class Segment {
 public:
  /// A new one of the owner. Errors: io.
  static Result<Segment> create(int world, Rank owner, std::uint64_t nonce);
  /// A peer's, by its file. Errors: `corrupt` when it is not that peer's of this group; io.
  static Result<Segment> map(FileDescriptor file, int world, Rank owner, std::uint64_t nonce);

  Segment() = default;
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  explicit operator bool() const { return base_ != nullptr; }
  int fd() const { return file_.get(); }
  /// The file is needed no more once all peers have it.
  void close_file() { file_ = FileDescriptor(); }

  /// Bytes of each ring. So many that a rank which does not read for long stops nobody: what was
  /// not touched costs addresses only.
  static std::size_t ring_bytes(int world);

  /// Appends a record to the ring of `from`. False when there is no room. @pre one thread, the one
  /// of `from`. Errors: `corrupt` when the owner wrote nonsense.
  Result<bool> push(Rank from, Kind kind, std::span<const std::byte> bytes);
  /// Takes the next record of a peer's ring into `out`, replacing it; false when there is none.
  /// @pre called by the owner. Errors: `corrupt`.
  Result<bool> pop(Rank from, Kind& kind, std::vector<std::byte>& out);

  /// For the owner: whose rings may have something new, 64 ranks to a word; clears it.
  std::uint64_t take_dirty(std::size_t word);
  std::size_t num_words() const { return (static_cast<std::size_t>(world_) + 63) / 64; }
  bool any_dirty() const;

  /// Wakes the owner if it sleeps.
  void wake();
  /// For the owner: sleeps until woken or `until`, unless a ring has something.
  void sleep(Deadline until);
  /// For a writer: wants to be woken when the ring of `from` has room; true for the owner's next
  /// pops of that ring, once.
  void ask_for_room(Rank from);
  bool wanted_room(Rank from);

  std::atomic<std::uint32_t>& closed();
  std::atomic<std::uint64_t>& revoked();
  std::byte* slot(std::uint32_t number);

 private:
  struct Header;
  struct Ring;
  Header& header() const;
  Ring& ring(Rank from) const;
  std::atomic<std::uint64_t>* dirty() const;
  static std::size_t bytes_for(int world);

  FileDescriptor file_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  int world_ = 0;
  struct Side {
    std::uint64_t count = 0;  ///< bytes written, or read.
    std::uint64_t base = 0;   ///< of the writer: the count that lies at the ring's begin.
  };
  std::vector<Side> sides_;  ///< this side of each ring.
};

}  // namespace reshard::shm
