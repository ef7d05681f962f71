// SPDX-License-Identifier: Apache-2.0
// Weights as HQQ's linear modules store them: codes beside scales, zero points and what describes
// them, a tensor each. Internals of decodings.h.
#pragma once

#include <optional>

#include "reshard/base/result.h"
#include "reshard/io/identify/codes/code_files.h"

namespace reshard::identify {

/// The weight whose codes `t` holds (X.W_q, U8 or I32, of two dimensions); none for other tensors.
/// Its values have the dtype in which the module computes; a tensor of the files names it.
///
/// Errors: Code::unsupported for parts that are missing or of another dtype or shape, for codes
/// stored as floats, for scales or zero points that are themselves codes, and for one scale of a
/// whole tensor; Code::corrupt for a shape that is malformed.
Result<std::optional<FoundCodes>> hqq(const CodeFiles& files, const CheckpointTensor& t);

}  // namespace reshard::identify
