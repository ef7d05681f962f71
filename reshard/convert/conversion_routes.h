// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/convert/layout_pair.h"
#include "reshard/refit/session.h"

namespace reshard {

/// The tensors of a pair that take the same route.
struct ConversionRow {
  std::string route;  ///< "quantise_at_receiver": the name in JSON.
  std::string how;    ///< the same in words.
  Index tensors = 0;
  Index bytes_from = 0, bytes_to = 0;  ///< of one copy of them, scales included, on either side.
  std::string example;                 ///< the first of them.
};

/// Where a session quantises and dequantises the tensors of the pair, in the order of the routes.
/// Errors: as find_routes().
Result<std::vector<ConversionRow>> conversion_rows(const LayoutPair& pair, ConversionSide convert);

/// By TensorId: whether data and scales of the tensor move as they are. Errors: as find_routes().
Result<std::vector<bool>> moved_as_stored(const LayoutPair& pair, ConversionSide convert);

/// What of a conversion between two quantised sides moves as it is stored, though not all of it
/// does.
struct StoredPart {
  std::shared_ptr<const Planner> planner;  ///< between what is stored; null: nothing does.
  Index requantised = 0;                   ///< tensors that are quantised anew.
};
/// Nothing where one side is plain, or where local tensors mix what is quantised on both sides and
/// what is not. `values`: the plan between both sides' values. Errors: those of Planner::make.
Result<StoredPart> stored_part(const LayoutSide& from, const LayoutSide& to, const Planner& values);

}  // namespace reshard
