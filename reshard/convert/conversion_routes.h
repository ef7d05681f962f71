// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/convert/layout_pair.h"
#include "reshard/refit/conversion/routes.h"
#include "reshard/refit/session.h"

namespace reshard {

/// The tensors of a layout pair that take the same route.
struct ConversionRow {
  std::string route;  ///< "quantise_at_receiver": the name in JSON.
  std::string how;    ///< the same in words.
  Index tensors = 0;
  Index bytes_from = 0, bytes_to = 0;  ///< of one copy of them on each side, scales included.
  std::string example;                 ///< the first of them.
};

/// "quantise_at_receiver": the name in JSON; "none" if it does not move.
std::string_view name(Route route);
/// "quantised by the receiver".
std::string_view in_words(Route route);

/// How a session converts the tensors of the pair, by route. Errors: those of find_routes().
Result<std::vector<ConversionRow>> conversion_rows(const LayoutPair& pair, ConversionSide convert);

/// For each TensorId, whether data and scales of the tensor move as they are. Errors: those of
/// find_routes().
Result<std::vector<bool>> moved_as_stored(const LayoutPair& pair, ConversionSide convert);

/// The tensors that a conversion between two quantised sides can move as they are stored, if it
/// cannot move all of them so.
struct StoredPart {
  std::shared_ptr<const Planner> planner;  ///< between the stored layouts; null: there are none.
  Index requantised = 0;                   ///< tensors that are quantised anew.
};
/// Empty if one side is plain, or if local tensors mix tensors that both sides quantise with
/// others. `values`: the plan between both sides' values. Errors: those of Planner::make().
Result<StoredPart> stored_part(const LayoutSide& from, const LayoutSide& to, const Planner& values);

}  // namespace reshard
