// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/refit/session.h"

namespace reshard {

/// How a canonical tensor gets from the source to the target.
enum class Route : std::uint8_t {
  none,                    ///< it does not move.
  plain,                   ///< plain values, from memory to memory.
  stored,                  ///< data and scales unchanged, from memory to memory.
  quantise_at_sender,      ///< values -> staged data and scales -> memory.
  quantise_at_receiver,    ///< values -> staged values -> memory.
  quantise_halo,           ///< values -> staged values of whole blocks -> memory.
  quantise_between,        ///< values -> whole matrices on some ranks -> data and scales -> memory.
  dequantise_at_sender,    ///< data and scales -> staged values -> memory.
  dequantise_at_receiver,  ///< data and scales -> staged data and scales -> memory.
  requantise,              ///< data and scales -> staged values -> staged values -> memory.
};

/// The routes of a job's tensors, decided from layouts and options alone: identical on all ranks.
struct Routes {
  std::vector<Route> of;  ///< by TensorId of the sides' values.
  /// The source in the target's format, on the canonical tensors' block grid: what senders quantise
  /// to. Null if no tensor takes such a route.
  std::shared_ptr<const QuantisedLayout> sender;
  /// The target in the source's format: what receivers stage and dequantise. Null as above.
  std::shared_ptr<const QuantisedLayout> receiver;
  /// In the target's format, for blocks that the target's shards cut: all blocks that each of its
  /// ranks needs, and whole matrices, each on one of its ranks. Null as above.
  std::shared_ptr<const QuantisedLayout> halo, between;
  ConversionCounts counts;
};

/// `moves` (by TensorId): the tensors that must move. Errors: a tensor whose blocks no rank can
/// have whole (named).
Result<Routes> find_routes(const SessionSide& source, const SessionSide& target,
                           const std::vector<bool>& moves, ConversionSide convert);

/// The plain-value slots of the pairs that contain any of these tensors (by TensorId); empty if
/// `layout` is null.
std::vector<SlotId> value_slots(const QuantisedLayout* layout, const std::vector<bool>& tensors);

}  // namespace reshard
