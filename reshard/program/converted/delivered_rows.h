// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

struct SideConversion;

/// A matrix of a quantised local tensor, and the rows of it that a plan writes.
struct DeliveredArea {
  QuantBlockArea area;
  std::vector<Interval> rows;  ///< whole blocks; ascending, disjoint.
};

/// The matrices of a pair on a rank, with the rows to convert: of a local tensor that is delivered
/// whole all, padding included; of one that is delivered in part, the rows of blocks that have a
/// delivered value. Errors: `unsupported` if something that has one scale or factor has values that
/// are delivered and values that are not, so that it cannot be written (both are named).
/// @pre the rank has the local tensor
Result<std::vector<DeliveredArea>> delivered_areas(const SideConversion& side,
                                                   const QuantisedLayout::Pair& pair, Rank rank);

/// Whether a side can be converted on every rank: a pure function of layouts and options, so all
/// ranks find the same. Errors: those of delivered_areas(), of the first rank that has one.
/// Cost: nothing, unless some local tensor is delivered in part.
Result<> check_delivered_areas(const SideConversion& side);

}  // namespace reshard
