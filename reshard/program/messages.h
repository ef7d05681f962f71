// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "reshard/program/builder.h"
#include "reshard/program/compile.h"

namespace reshard::program {

/// The most exchanges of one rank in progress at once. At least two: see MessageSteps.
inline constexpr std::size_t kWindow = 16;

/// The most bytes of a chunk that a side stages, with these options.
Index most_staged(const CompileOptions& options);

/// The limits of one exchange, except one of a single chunk or of a single position.
struct ExchangeLimits {
  Index staged = 0, bytes = 0;
  std::size_t chunks = 0;
  /// Size of the ring of staging memory, in exchanges of the largest size.
  Index ring = 0;
  int round_bits = -1;  ///< CompileOptions::round_bits.
};
ExchangeLimits exchange_limits(const CompileOptions& options);

/// Chunk::progress, in units of 2^-32: the fraction of a pair's `bytes` before the chunk, `before`.
/// In rounds, the chunks of pairs that are `shift` ranks apart are later by shift / world of their
/// own bytes, so that not all pairs begin at one position.
std::uint64_t progress_of(Index before, Index chunk, Index bytes, Index shift,
                          const CompileOptions& options);

/// The most bytes of a chunk of a chain of relays. At least 64, a multiple of 64.
Index most_of_chain(Index bytes, std::int32_t hops, const CompileOptions& options);

/// Errors: `unsupported` for a chain of so many bytes in so many pieces that its chunks, of at most
/// `most` bytes, have no ids.
Result<> check_chain(Index bytes, Index pieces, Index most);

/// The id of a chunk's message on a hop. Above those of other messages of the ranks; the same from
/// hop to hop but for kForwarded.
std::uint64_t id_in_chain(const RelayHop& relay, std::size_t chunk);

/// Chunk::progress of a chunk of a chain of relays, which must be later from hop to hop: by the
/// time that `lag` bytes take. The whole chain, `bytes`, ends before 1 at its last hop.
std::uint64_t progress_of_chain(Index before, Index bytes, Index lag, const RelayHop& relay);

/// One message of a rank, before it has a place in the program.
struct Chunk {
  /// The position of the chunk in one order over all messages of the group.
  std::uint64_t progress = 0;
  Index shift = 0;  ///< (dst - src) mod world.
  /// In rounds: of this chunk among those of its pair that have the same progress. MessageSteps
  /// sets it.
  std::uint32_t number = 0;
  ProgramMessage message;  ///< `at`: where it is if it needs no staging; otherwise kStaging, 0.
  /// Copies between a local tensor and the chunk; on the side of kStaging, offsets count from the
  /// chunk.
  std::vector<ProgramPiece> pieces;
  /// Receives of converted rows: the receive buffer that the chunk is a part of; -1: none. Places
  /// in kStaging on the buffer's side count from its start.
  std::int64_t receive_buffer = -1;
  /// The chunk's part in a chain of relays (id_in_chain()): this rank receives it, or
  /// sends it to the next after it has received it. A holder's sends are ordinary ones.
  enum class Relay : std::uint8_t { none, received, forwarded };
  Relay relay = Relay::none;
  /// Sends of converted rows: takes note that the tile which follows writes the chunk at this
  /// offset of staging, instead of `pieces`. May be empty. See MessageSteps::before_tile().
  std::function<void(Index at)> pack;
  bool in_receive_buffer() const { return receive_buffer >= 0 && pieces.empty(); }
  bool is_staged() const { return message.at.buffer == Builder::kStaging && !in_receive_buffer(); }
  auto key() const { return std::tuple(progress, shift, number, message.id, !message.is_send); }
};

/// Staging where several messages to this rank arrive, until a tile has converted them.
struct ReceiveBuffer {
  Index bytes = 0;
  std::size_t chunks = 0;  ///< of messages that are part of it.
  bool clears = false;     ///< must be zero before the first message.
  /// Appends the tile that reads the buffer at this offset of staging and waits for these steps.
  std::function<StepId(Index at, std::vector<StepId> waits)> convert;
};

/// Appends messages with their packing and unpacking.
///
/// All messages of the group have one total order, by (progress, shift, id). `progress` is the
/// fraction of the pair's bytes that precede the chunk, in units of 2^-32. So a rank serves all its
/// peers at the same relative pace, however many bytes each gets, and at each position of the order
/// every rank sends to a different one.
///
/// The messages at one position form a class: a rank has at most one to send and one to receive in
/// it. Ranks that begin their chunks in this order, with room for any two consecutive ones, cannot
/// deadlock: in the least class that is not complete, both sides of each message have begun it.
///
/// A relay forwards a chunk once it has arrived, in a later exchange. As its position is later,
/// too, the argument holds: whatever an exchange waits for has a lesser position.
///
/// With round_bits >= 0 each exchange is one round: all chunks of this rank between two multiples
/// of 2^round_bits positions. A position is (progress, shift, number), as 32, 16 and 16 bits.
/// Rounds are whole on all ranks that cut alike, so even ranks that complete each exchange before
/// they begin the next cannot deadlock.
class MessageSteps {
 public:
  /// Staging begins at `first`. It has limits.ring * limits.staged bytes, or more if a single
  /// exchange needs more than limits.staged. Packing waits for `known`.
  MessageSteps(Builder& builder, Index first, const ExchangeLimits& limits,
               std::vector<StepId> known = {});

  /// `f` adds the ops of a tile that packs, for all chunks whose `pack` was called since the last
  /// tile: chunks to several peers may need the same rows.
  void before_tile(std::function<void()> f) { before_tile_ = std::move(f); }

  /// Sorts the chunks and appends their steps. The chunks of a receive buffer must have positions
  /// in the order between which no other chunk of this rank has one. Returns the end of the staging
  /// that they use.
  Index add(std::vector<Chunk> chunks, std::vector<ReceiveBuffer> buffers = {});

  /// After add(): the largest round_bits up to those of the limits for which rounds are within the
  /// limits; these are used.
  int round_bits() const { return round_bits_; }

 private:
  /// Consecutive chunks that are one exchange.
  struct Group {
    std::size_t first = 0, end = 0;
    Index bytes = 0, staged = 0;
  };
  /// Staging in use until `until` is done.
  struct Region {
    Index begin = 0, end = 0;
    StepId until;
  };
  /// A receive buffer that has a place.
  struct Open {
    Index at = 0;
    std::size_t arrived = 0;  ///< chunks.
    std::vector<StepId> waits;
  };
  bool fit(const Group& a, const Group& b) const;
  void find_forwarded(const std::vector<Chunk>& chunks);
  bool forwards(const Group& a, const Group& b) const;
  std::vector<Group> alone(const std::vector<Chunk>& chunks) const;
  std::vector<Group> group(const std::vector<Chunk>& chunks) const;
  std::vector<Group> rounds(const std::vector<Chunk>& chunks);
  Index place(Index bytes, std::vector<StepId>& waits);
  void place_chunks(std::vector<Chunk>& chunks, const Group& group, Index at,
                    std::vector<StepId>& waits);
  void append(std::vector<Chunk>& chunks, const Group& group);
  std::optional<StepId> pack(const std::vector<Chunk>& chunks, const Group& group,
                             std::size_t before, const std::vector<StepId>& waits);
  StepId exchange(const std::vector<Chunk>& chunks, const Group& group, std::vector<StepId> waits);
  StepId unpack(const std::vector<Chunk>& chunks, const Group& group, StepId exchange);
  void arrive(const std::vector<Chunk>& chunks, const Group& group, StepId unpacked);

  Builder& builder_;
  ExchangeLimits limits_;
  int round_bits_;
  Index first_, size_ = 0, at_ = 0;
  std::vector<StepId> known_;
  std::function<void()> before_tile_;
  std::vector<Region> regions_;
  std::vector<StepId> exchanges_;
  std::vector<ReceiveBuffer> buffers_;
  std::map<std::int64_t, Open> open_;  ///< by receive buffer.
  /// 1 + the chunk that each chunk forwards; 0: none. Empty if nothing is forwarded.
  std::vector<std::size_t> forwarded_;
  std::map<std::uint64_t, StepId> arrived_;  ///< by id: after which a chunk can be forwarded.
};

}  // namespace reshard::program
