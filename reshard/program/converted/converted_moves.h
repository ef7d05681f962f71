// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "reshard/plan/moves.h"
#include "reshard/program/compile.h"
#include "reshard/program/converted/converted_rows.h"

namespace reshard::converted {

/// The rows that one rank's side of a plan converts: of a source before its bytes are read or sent,
/// of a target after they have arrived. A unit is some rows of a matrix. The plan's local tensors
/// are one form of the rows, the *planned* one, which is in memory for a unit at a time.
class ConvertedSide {
 public:
  /// Units of about `unit_bytes` bytes of values; `batch_bytes`: see batch_of(). Borrows `side`.
  /// Errors: converted_rows()'s.
  static Result<ConvertedSide> make(const SideConversion& side, bool is_target, Rank rank,
                                    Index unit_bytes, Index batch_bytes = 0);

  Rank rank() const { return rank_; }
  std::size_t size() const { return rows_.size(); }
  /// Units of one matrix are adjacent.
  std::size_t matrix_of(std::size_t unit) const { return rows_[unit].matrix; }
  /// True if units are quantised, some in a format that needs_amax().
  bool needs_amax() const { return side_->quantises && reshard::needs_amax(side_->layout->choice); }
  /// The most bytes of a unit's planned form, part after part, each at a multiple of 64.
  Index planned_bytes(std::size_t unit) const { return placed_[unit].bytes; }
  /// A batch is adjacent units whose planned forms have at most `batch_bytes` bytes together, or
  /// one unit: they share messages, and lie one after another where these arrive.
  std::size_t batch_of(std::size_t unit) const { return placed_[unit].batch; }
  std::size_t batches() const { return batch_bytes_.size(); }
  Index batch_bytes(std::size_t batch) const { return batch_bytes_[batch]; }
  /// Offset of the unit's planned form in its batch. Bytes.
  Index at_in_batch(std::size_t unit) const { return placed_[unit].at_in_batch; }
  /// The bytes of the planned form that are of the rows, without columns in between.
  Index wanted_bytes(std::size_t unit) const;
  /// Bytes of the other form: of the rows; and with columns in between, part after part, each at a
  /// multiple of 64.
  Index memory_bytes(std::size_t unit) const;
  Index spread_bytes(std::size_t unit) const;

  /// The place to read or write a part of the rows that is in memory.
  using MemoryPlace = std::function<Place(const PartRows&)>;
  /// The unit as a matrix: its planned form begins at `planned`.
  ProgramMatrix matrix(std::size_t unit, Place planned, Place amax,
                       const MemoryPlace& memory) const;
  ProgramOp::Kind kind() const {
    return side_->quantises ? ProgramOp::Kind::quantise : ProgramOp::Kind::dequantise;
  }

  /// Parts of moves, by unit.
  using Cut = std::map<std::size_t, std::vector<Move>>;
  /// Cuts moves along the units: the parts in each unit, with offsets of this side in its planned
  /// form. Bytes that several units have, such as a factor, are in the first of them (source), or
  /// in all (target). @pre the moves' slots of this side are planned
  Cut cut(std::span<const Move> moves) const;

 private:
  /// Bytes of a planned local tensor that are at `at` of a unit's planned form.
  struct Range {
    SlotId slot;
    Index begin = 0, bytes = 0;
    std::size_t unit = 0;
    Index at = 0;
  };
  struct Placed {
    std::array<Index, kMatrixParts> at = {};  ///< of each part in the planned form.
    Index bytes = 0;
    std::size_t batch = 0;
    Index at_in_batch = 0;
  };
  bool is_planned(std::size_t part) const { return (part == 0) == planned_values_; }
  void place(std::size_t unit);
  void make_batches(Index bytes);

  const SideConversion* side_ = nullptr;
  bool is_target_ = false, planned_values_ = false;
  Rank rank_;
  std::vector<ConvertedRows> rows_;
  std::vector<Placed> placed_;
  std::vector<Index> batch_bytes_;
  std::vector<Range> ranges_;  ///< by slot and begin.
  Index longest_ = 0;
};

}  // namespace reshard::converted
