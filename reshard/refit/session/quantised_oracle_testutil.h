// SPDX-License-Identifier: Apache-2.0
// What the two sides of a job hold, quantised or not, computed with all ranks' memory in one
// process, matrix by matrix.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "reshard/exec/rank_buffers.h"
#include "reshard/refit/session_side.h"

namespace reshard {

/// One side of a job with the memory of all its ranks.
struct OracleSide {
  std::shared_ptr<const ModelLayout> layout;         ///< null where quantised.
  std::shared_ptr<const QuantisedLayout> quantised;  ///< null where plain.
  std::shared_ptr<RankBuffers> values, stored;       ///< stored: of all that is in memory.
  OracleSide(std::shared_ptr<const ModelLayout> plain);
  OracleSide(std::shared_ptr<const ModelLayout> plain, QuantChoice choice);
  SessionSide side() const { return {.layout = layout, .quantised = quantised}; }
};

/// Fills the source at a version (values that differ by tensor, element and version, blocks of
/// zeros among them), then what the target must hold after it: all by way of plain values.
void fill_sides(OracleSide& source, OracleSide& target, std::int64_t version);
/// The target where data and scales of equal formats move as they are, after fill_sides().
void move_stored(const OracleSide& source, OracleSide& target);

/// Names of tensors that engines quantise: the projections of attention and of experts.
std::set<std::string> projections(const ModelSpec& model);

/// Bytes of a rank's local tensors that are not the other's. @pre buffers of one layout
Index different_bytes(const RankBuffers& a, const RankBuffers& b, Rank r);

}  // namespace reshard
