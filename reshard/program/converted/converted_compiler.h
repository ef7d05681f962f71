// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "reshard/program/converted/converted_moves.h"
#include "reshard/program/messages.h"
#include "reshard/program/pair_chunks.h"
#include "reshard/program/tiles.h"

namespace reshard::converted {

using program::Builder;
using program::Chunk;
using program::ChunkPart;
using program::chunks_of;
using program::exchange_limits;
using program::MessageSteps;
using program::most_staged;
using program::PairChunks;
using program::ReceiveBuffer;
using program::side_by_side;

/// Compiles one rank's part of a plan whose values are quantised or dequantised on the way.
class ConvertedCompiler {
 public:
  ConvertedCompiler(const Planner& planner, const RankPlan& part, const CompileOptions& options)
      : planner_(planner),
        part_(part),
        options_(options),
        me_(part.rank),
        out_(part.rank, planner.digest()) {}

  Result<Program> run();
  /// Implements compile_source().
  Result<Program> run_source();

 private:
  using Cut = ConvertedSide::Cut;

  bool produces() const { return options_.before.layout != nullptr; }
  bool consumes() const { return options_.after.layout != nullptr; }
  const ModelLayout& source_memory() const {
    return *memory_of(options_.before, false, planner_.shared_source());
  }
  const ModelLayout& target_memory() const {
    return *memory_of(options_.after, true, planner_.shared_target());
  }
  bool is_got(Rank r) const { return r != me_ && options_.path_from(r) == PairPath::get; }
  /// False for a sender of messages, which converts its source itself.
  bool reads_source(Rank r) const { return r == me_ || options_.path_from(r) != PairPath::message; }
  BufferId source(Rank r, SlotId slot) {
    return out_.tensor(ProgramBuffer::Kind::source, r, slot,
                       bytes_of_local(source_memory(), r, slot), !is_got(r));
  }
  /// A place in scratch where these bytes of a source are read to; each op of a tile has its own.
  Place get(Rank r, SlotId slot, const StridedCopy& copy);
  Place source_place(Rank r, const PartRows& part);
  BufferId target(SlotId slot) {
    return out_.tensor(ProgramBuffer::Kind::target, me_, slot,
                       bytes_of_local(target_memory(), me_, slot));
  }

  Index batch_bytes(bool is_target) const;
  Result<const ConvertedSide*> side(bool is_target, Rank r);
  Result<> find_moves();
  Result<> add_peer(std::span<const Transfer> pair, bool is_send);
  Result<> add_chunks();
  Result<> add_chunks_with(Rank peer, bool is_send, std::span<const Move> moves);
  /// The pieces that a batch of units sends to a peer or receives from it, and the unit of each.
  struct BatchPieces {
    std::size_t batch = 0;
    std::vector<PairPiece> pieces;
    std::vector<std::size_t> units;
    const Packing& mine(const ChunkPart& part, bool is_send) const {
      return is_send ? pieces[part.piece].src : pieces[part.piece].dst;
    }
  };
  void add_batch_chunks(Rank peer, bool is_send, const BatchPieces& of, std::uint64_t progress);
  Chunk chunk_of(const BatchPieces& of, std::span<const ChunkPart> parts, Rank peer, bool is_send);
  Chunk send_of(const BatchPieces& of, std::span<const ChunkPart> parts, Chunk chunk);
  std::optional<Place> one_run(const BatchPieces& of, std::span<const ChunkPart> parts,
                               bool is_send);
  Cut moves_of(const BatchPieces& of, std::span<const ChunkPart> parts, bool is_send) const;
  void gather(std::span<const Move> moves, Place into);
  void add_made();
  Result<> find_finish();
  void add_receive_buffers();
  void add_tiles();
  Index read_bytes(std::size_t unit) const;
  ReceiveBuffer receive_buffer(std::size_t batch, std::span<const std::size_t> units);
  /// Units of this rank, each with the place of its planned form.
  using PlacedUnits = std::vector<std::pair<std::size_t, Place>>;
  StepId convert(const PlacedUnits& units, std::vector<StepId> waits);
  Index convert_rows(std::size_t unit, Place at);
  std::vector<StepId> waits_for(std::span<const Move> moves) const;

  Index floats(std::size_t n) {
    const Index at = floats_;
    floats_ += whole_lines(static_cast<Index>(n) * 4);
    return at;
  }
  Place amax_of(Rank r, bool is_target, std::size_t matrix) const;
  void add_amax();
  /// For each matrix, the offset in staging of its adjacent floats, and their number.
  using Floats = std::map<std::size_t, std::pair<Index, Index>>;
  Floats find_amaxes(const ConvertedSide& rows, const Cut& cut, std::vector<StepId>& found);
  void add_sent_amax(std::vector<ProgramMessage>& messages, std::vector<StepId>& found);
  Index join_amax(const Floats& read, std::size_t matrix, const std::vector<Index>& received);
  void add_own_amax();
  void add_source_amax(Rank r);
  StepId amax_tile(const ConvertedSide& side, std::size_t unit, std::span<const Move> moves,
                   Index to);

  const Planner& planner_;
  const RankPlan& part_;
  const CompileOptions& options_;
  Rank me_;
  Builder out_;
  std::vector<StepId> begun_;
  std::map<std::pair<bool, Rank>, std::unique_ptr<ConvertedSide>> sides_;
  std::vector<Move> here_;                       ///< from memory that this rank reads.
  std::map<Rank, std::vector<Move>> to_, from_;  ///< by messages.
  Cut here_by_unit_;                             ///< if this side consumes.
  std::map<Rank, Cut> from_by_unit_;
  /// The units as this rank makes them in scratch, and what it keeps of each, if shards cut blocks.
  std::unique_ptr<ConvertedSide> made_;
  Cut kept_;
  std::vector<Chunk> chunks_;
  /// The units of this rank's source that the next tile makes, and the moves to staging of each.
  Cut to_make_;
  /// Bytes that arrive in messages, by unit of this rank; and the receive buffers, by batch.
  std::map<std::size_t, Index> arrives_;
  std::map<std::size_t, std::size_t> buffer_of_;
  std::vector<ReceiveBuffer> buffers_;
  std::map<Rank, std::uint64_t> next_id_;
  Index floats_ = 0;                                           ///< staging of amaxes.
  std::map<std::tuple<bool, Rank, std::size_t>, Index> amax_;  ///< by side, rank and matrix.
  std::vector<StepId> amax_known_;
  /// Scratch: a unit that is consumed, then one that is produced, then what gets read.
  Index planned_bytes_ = 0, produced_bytes_ = 0;
  Index got_ = 0, most_got_ = 0;  ///< in the current tile; in any.
};

}  // namespace reshard::converted
