// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/cuda/tiles/transposes.h"
#include "reshard/transform/copy.h"

namespace reshard::cuda {

/// Collects the copies that transpose matrices, and cuts them into tiles that thread blocks turn in
/// shared memory, so that both reads and writes are of adjacent bytes.
class TransposeTable {
 public:
  /// Adds a copy to the level if its elements (runs) are adjacent in the source along one of its
  /// loops and in the target along another, if they are of 1, 2, 4, 8 or 16 bytes and aligned, and
  /// if both loops are long enough to gain. Otherwise adds nothing and returns false.
  /// @pre as for run_copies(); nothing is converted
  bool add(const CopyTask& task);
  /// Ends the level, which may be empty.
  void end_level();

  struct Level {
    std::uint32_t first_tile = 0, end_tile = 0;
  };
  /// As many as end_level() was called.
  std::span<const Level> levels() const { return levels_; }
  std::span<const TransposeTile> tiles() const { return tiles_; }
  std::span<const TransposePiece> pieces() const { return pieces_; }
  std::span<const CopyLoop> loops() const { return loops_; }

 private:
  void add_tiles(const TransposePiece& piece, std::uint32_t matrices);

  std::vector<Level> levels_;
  std::vector<TransposeTile> tiles_;
  std::vector<TransposePiece> pieces_;
  std::vector<CopyLoop> loops_;
};

}  // namespace reshard::cuda
