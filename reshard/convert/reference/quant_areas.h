// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/model/quant/quantised_layout.h"
#include "reshard/transform/quantise.h"

namespace reshard::reference {

/// The local tensors of a pair on one rank, borrowed; `factor` is null if the format has none.
struct SlotMemory {
  std::byte *values = nullptr, *data = nullptr, *scales = nullptr, *factor = nullptr;
};

/// One matrix of a pair, as the kernels take it.
struct QuantArea {
  FloatMatrix values;
  QuantMatrix quantised;
};

/// The matrices of a pair on a rank. Errors: those of check_quant_format().
Result<std::vector<QuantArea>> areas_of(const QuantisedLayout& layout,
                                        const QuantisedLayout::Pair& pair, Rank r,
                                        const SlotMemory& memory);

}  // namespace reshard::reference
