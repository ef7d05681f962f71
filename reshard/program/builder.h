// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "reshard/memory/cache_line.h"
#include "reshard/program/program.h"

namespace reshard::program {

/// Appends steps to a program. Ops that are added belong to the tile that the next tile() ends.
class Builder {
 public:
  /// The two buffers that every program has.
  static constexpr BufferId kStaging{0}, kScratch{1};

  Builder(Rank rank, std::uint64_t plan_digest);

  /// A local tensor's buffer, the same for the same (kind, rank, slot).
  BufferId tensor(ProgramBuffer::Kind kind, Rank rank, SlotId slot, Index bytes,
                  bool mapped = true);
  const ProgramBuffer& buffer(BufferId id) const { return out_.buffers[id.index()]; }

  /// Adds an op, or extends the previous one of the tile if it is of the same kind.
  void copy(const ProgramPiece& piece, bool streams);
  void get(const ProgramPiece& piece);
  void put(const ProgramPiece& piece);
  void clear(const ProgramRange& range);
  void convert(ProgramOp::Kind kind, const ProgramMatrix& matrix);
  void max(const ProgramMaximum& maximum);

  /// Ends a tile. Waits may be in any order, and repeated.
  StepId tile(Index bytes, Index delivered, std::vector<StepId> waits);
  StepId exchange(std::span<const ProgramMessage> messages, Index bytes, Index delivered,
                  std::vector<StepId> waits);
  StepId barrier(std::vector<StepId> waits);

  /// All steps that no step waits for.
  std::vector<StepId> last_steps() const;
  std::size_t num_ops() const { return out_.ops.size(); }
  void set_round_bits(int bits) { out_.round_bits = bits; }
  void count_copies(std::size_t copies) { out_.copies += static_cast<Index>(copies); }

  /// Ends the program; sizes in bytes.
  Program finish(Index staging_bytes, Index scratch_bytes) &&;

 private:
  using Kind = ProgramOp::Kind;
  void add(const ProgramPiece& piece, Kind kind, bool streams);
  StepId step(const ProgramStep& step, std::vector<StepId> waits);

  Program out_;
  std::size_t first_op_ = 0;  ///< of the tile that is being made.
  std::vector<bool> awaited_;
  std::map<std::tuple<ProgramBuffer::Kind, Rank, SlotId>, BufferId> tensors_;
};

}  // namespace reshard::program
