// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/layout/strided.h"
#include "reshard/plan/planner.h"

namespace reshard {

/// One copy from a local tensor of one rank into a local tensor of one rank (often another), with
/// the conversion of its values where both store them differently. Offsets in bytes.
struct Move {
  Rank src, dst;
  SlotId src_slot, dst_slot;
  StridedCopy copy;
  Conversion conversion;
  friend bool operator==(const Move&, const Move&) = default;
};

/// The copies that carry out deliveries where both ends are addressable, each destination place
/// included (a tensor may stand in several local tensors of a rank). Sorted by (src, src slot, dst
/// slot, offset) and coalesced: copies that are adjacent on both sides are one. Errors:
/// Code::unsupported where sub-byte elements begin inside a byte.
Result<std::vector<Move>> copy_ops(const Planner& planner, std::span<const Transfer> deliveries);

/// Merges adjacent moves of a sorted list in place; the bytes moved stay the same.
void coalesce(std::vector<Move>& sorted);

/// A strided piece of a local tensor (source side of `copy`) and its place in packed bytes
/// (destination side, row-major, from 0). To unpack, read it backwards.
struct Packing {
  SlotId slot;
  StridedCopy copy;
  Conversion conversion;  ///< from the local form to the one on the wire.

  /// One run that is sent or received as it lies.
  bool in_one_run() const { return copy.num_loops == 0 && !conversion.converts(); }
};

/// A part of the bytes between two ranks, as both see it.
struct PairPiece {
  Packing src, dst;
  Index bytes = 0;        ///< on the wire.
  bool converts = false;  ///< on the way from source to destination.
};

/// The bytes between two ranks: the transfers in order, each box row-major in the wire's form;
/// neighbours that follow each other in one run on both sides are merged. Each of the two ranks
/// finds the same. Errors: Code::unsupported where sub-byte elements begin inside a byte.
/// @pre `transfers` is a run of one peer in RankPlan::sends (recvs), and not empty
Result<std::vector<PairPiece>> pieces_of(const Planner& planner,
                                         std::span<const Transfer> transfers);

/// Copies inside the target that fill the second and later places of what a rank has received or
/// copied. To run after all its deliveries to first places are done.
Result<std::vector<Move>> duplicate_copies(const Planner& planner,
                                           std::span<const Transfer> deliveries);

}  // namespace reshard
