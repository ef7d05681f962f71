// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/layout/strided.h"
#include "reshard/plan/planner.h"

namespace reshard {

/// One copy from a local tensor of a rank into a local tensor of a rank (often another one), with a
/// conversion of values if their stored forms differ. Offsets in bytes.
struct Move {
  Rank src, dst;
  SlotId src_slot, dst_slot;
  StridedCopy copy;
  Conversion conversion;
  friend bool operator==(const Move&, const Move&) = default;
};

/// The copies that carry out deliveries if both ends are addressable, one for each destination
/// location (a rank may hold a tensor in several local tensors). Sorted by (src, src slot, dst, dst
/// slot, offset) and coalesced: copies that are adjacent on both sides are one. Errors:
/// Code::unsupported if sub-byte elements begin inside a byte.
Result<std::vector<Move>> copy_ops(const Planner& planner, std::span<const Transfer> deliveries);

/// Merges adjacent moves of a sorted list in place; moves the same bytes.
void coalesce(std::vector<Move>& sorted);

/// A strided piece of a local tensor (the source of `copy`) and its location in packed bytes (the
/// destination, row-major, from 0). To unpack, swap both sides.
struct Packing {
  SlotId slot;
  StridedCopy copy;
  Conversion conversion;  ///< from the local form to the wire form.

  /// True if it is one run of bytes that needs no packing.
  bool in_one_run() const { return copy.num_loops == 0 && !conversion.converts(); }
};

/// A part of the bytes between two ranks, with the packing on both sides.
struct PairPiece {
  Packing src, dst;
  Index bytes = 0;        ///< on the wire.
  bool converts = false;  ///< values change between source and destination.
};

/// The bytes between two ranks: the transfers in order, each box row-major in the wire form.
/// Consecutive transfers that continue one run on both sides are merged. Both ranks compute the
/// same pieces. Errors: Code::unsupported if sub-byte elements begin inside a byte.
/// @pre `transfers` are all transfers with one peer in RankPlan::sends (recvs), and not empty
Result<std::vector<PairPiece>> pieces_of(const Planner& planner,
                                         std::span<const Transfer> transfers);

/// The bytes of one transfer as one side has them. Errors: as pieces_of().
/// `is_send`: the side that sends, which after hop 0 of a relay is a rank of the target.
Result<Packing> packing_of(const Planner& planner, const Transfer& transfer, bool is_send);

/// The copies inside the target that fill the second and later locations of delivered boxes from
/// the first. To run after all deliveries.
Result<std::vector<Move>> duplicate_copies(const Planner& planner,
                                           std::span<const Transfer> deliveries);

}  // namespace reshard
