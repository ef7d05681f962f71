// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/refit/session.h"

namespace reshard {

/// How a canonical tensor gets from one side to the other.
enum class Route : std::uint8_t {
  none,                    ///< it does not move.
  plain,                   ///< plain values, from memory to memory.
  stored,                  ///< data and scales as they are, from memory to memory.
  quantise_at_sender,      ///< values -> landing of data and scales -> memory.
  quantise_at_receiver,    ///< values -> landing of values -> memory.
  quantise_between,        ///< values -> whole matrices on some ranks -> data and scales -> memory.
  dequantise_at_sender,    ///< data and scales -> landing of values -> memory.
  dequantise_at_receiver,  ///< data and scales -> landing of them -> memory.
  requantise,              ///< data and scales -> landing of values -> landing -> memory.
};

/// How a job's tensors go, decided from layouts and options alone: alike on all ranks.
struct Routes {
  std::vector<Route> of;  ///< by TensorId of the sides' values.
  /// The source in the target's format, with the canonical tensors' grid: what is sent where
  /// senders quantise. Null where no tensor goes so.
  std::shared_ptr<const QuantisedLayout> sender;
  /// The target in the source's format: what lands where receivers dequantise. Null as above.
  std::shared_ptr<const QuantisedLayout> receiver;
  /// Whole matrices, each on one of the target's ranks, in the target's format. Null as above.
  std::shared_ptr<const QuantisedLayout> between;
  ConversionCounts counts;
};

/// `moves`, by TensorId: what is not to stay as it is. Errors: a tensor that would have to be made
/// of blocks that no rank can have whole (named).
Result<Routes> find_routes(const SessionSide& source, const SessionSide& target,
                           const std::vector<bool>& moves, ConversionSide convert);

/// The slots of pairs that hold any of these tensors, as plain values; empty for null.
std::vector<SlotId> value_slots(const QuantisedLayout* layout, const std::vector<bool>& tensors);

}  // namespace reshard
