// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::shm {

/// The kind of a record in a ring.
enum class Kind : std::uint32_t {
  frame = 1,  ///< a frame of the wire.
  chunk,      ///< a Chunk: a piece of a bulk lies in a slot of the sender.
  credit,     ///< the number of a slot of the receiver that is empty again.
};

struct Chunk {
  std::uint64_t tag;
  std::uint32_t slot;
  std::uint32_t bytes;
};

/// Size in bytes of the slots through which bulks are staged if no memory of a peer can be read.
/// Small enough for the caches when some slots are filled while others are copied.
inline constexpr std::size_t kSlotBytes = std::size_t{128} << 10;
inline constexpr std::uint32_t kSlots = 8;
/// Size of the largest frame in bytes.
inline constexpr std::size_t kMaxFrame = std::size_t{16} << 10;

/// The mailbox of one rank, in memory that all ranks of the host map. It has a ring for each peer
/// to write and for the owner to read. No rank trusts what another wrote.
class Segment {
 public:
  /// Creates the mailbox of `owner`. Errors: io.
  static Result<Segment> create(int world, Rank owner, std::uint64_t nonce);
  /// Maps the mailbox of a peer. Errors: `corrupt` if the file is not the mailbox of that peer in
  /// this group; io.
  static Result<Segment> map(FileDescriptor file, int world, Rank owner, std::uint64_t nonce);

  Segment() = default;
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  explicit operator bool() const { return base_ != nullptr; }
  int fd() const { return file_.get(); }
  /// Closes the file, which is not needed once all peers have opened it.
  void close_file() { file_ = FileDescriptor(); }

  /// Size of each ring in bytes. Large, so that a rank that does not read for long blocks nobody;
  /// untouched pages use no memory.
  static std::size_t ring_bytes(int world);

  /// Appends a record to the ring of `from`. False if there is no room. @pre called by the thread
  /// of `from`. Errors: `corrupt` if the owner has damaged the ring.
  Result<bool> push(Rank from, Kind kind, std::span<const std::byte> bytes);
  /// Moves the next record of a peer's ring into `out`; false if there is none.
  /// @pre called by the owner. Errors: `corrupt`.
  Result<bool> pop(Rank from, Kind& kind, std::vector<std::byte>& out);

  /// For the owner: the rings that may have new records, 64 ranks per word. Clears the word.
  std::uint64_t take_dirty(std::size_t word);
  std::size_t num_words() const { return (static_cast<std::size_t>(world_) + 63) / 64; }
  bool any_dirty() const;

  /// Wakes the owner if it sleeps.
  void wake();
  /// For the owner: sleeps until woken or `until`, unless a ring has new records.
  void sleep(Deadline until);
  /// For the writer `from`: asks to be woken when its ring has room. wanted_room() then returns
  /// true to the owner, once.
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
    std::uint64_t count = 0;  ///< bytes written or read.
    std::uint64_t base = 0;   ///< for a writer: the count at the start of the ring.
  };
  std::vector<Side> sides_;  ///< this rank's side of each ring.
};

}  // namespace reshard::shm
