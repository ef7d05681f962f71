// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/plan/moves.h"
#include "reshard/program/builder.h"

namespace reshard::program {

/// Pieces that are copied together: they share the lines of one tensor that they read, or write.
struct PieceGroup {
  std::size_t first = 0, end = 0;
};

/// Sorts moves so that each cache line is read and written once if possible, and adjacent moves
/// form groups: all moves of a group read one source tensor; or they gather rows of one destination
/// tensor, whose lines then decide.
std::vector<PieceGroup> group_moves(std::vector<Move>& moves);

/// Cuts groups of pieces into tiles of about `tile_bytes`. A large group is cut across its pieces,
/// so that each tile has the same rows of all of them; small groups share a tile. Every tile waits
/// for `waits` and delivers all its bytes.
void add_tiles(Builder& builder, std::span<const ProgramPiece> pieces,
               std::span<const PieceGroup> groups, Index tile_bytes,
               const std::vector<StepId>& waits);

/// Returns the copy that reads the runs of `copy` into adjacent places; `finish` becomes the copy
/// from there to the destination.
StridedCopy side_by_side(const StridedCopy& copy, StridedCopy& finish);

/// Reads from buffers that are not mapped: straight into the destination, thousands of runs at a
/// time. Values to convert are read into staging first; so are runs so short that reading the gaps
/// between them too is cheaper (get_costs.h). Tiles that use staging follow one another. Uses
/// staging [0, n), n <= `most` (at least 8 bytes); returns n. Pieces of one source should be
/// adjacent.
Index add_gets(Builder& builder, std::span<const ProgramPiece> pieces, Index most,
               const std::vector<StepId>& waits);

}  // namespace reshard::program
