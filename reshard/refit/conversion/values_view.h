// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/exec/rank_buffers.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard::conversion {

/// The local tensors of `stored` that are plain values, as buffers of the layout of values: the
/// same memory. The layout must outlive the result.
Result<std::unique_ptr<RankBuffers>> values_view(const QuantisedLayout& layout,
                                                 const RankBuffers& stored);

}  // namespace reshard::conversion
