// SPDX-License-Identifier: Apache-2.0
// Tensors that a checkpoint stores input first, [matrices, in, out..] (gpt-oss' experts). The
// stored model of a quantised layout has their input last, as quantised memory has it: [matrices,
// out.., in].
#pragma once

#include "reshard/model/model_layout.h"

namespace reshard::quant {

/// Moves dimension 1 to the end: of a shape, of merged dimensions (@pre dimension 1 is not merged),
/// and of the canonical side of a part.
Dims with_input_last(const Dims& shape);
MergedDims with_input_last(MergedDims merged);
PlacedBox with_input_last(const PlacedBox& part);

}  // namespace reshard::quant
