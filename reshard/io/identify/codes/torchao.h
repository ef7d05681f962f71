// SPDX-License-Identifier: Apache-2.0
// Weights that torchao's tensor subclasses have, as transformers saves them: of a parameter "M.P",
// tensors "M._P_qdata", "M._P_scale" and others, and in the file's metadata, under "M.P", a text of
// JSON that names the subclass and its attributes. Internals of decodings.h.
#pragma once

#include <optional>

#include "reshard/io/identify/codes/code_files.h"

namespace reshard::identify {

/// The tensor whose codes `t` is; none if it is something else. Subclasses: Int8Tensor,
/// IntxUnpackedToInt8Tensor, Int4Tensor, Float8Tensor, MXTensor (MXFP8, MXFP4) and NVFP4Tensor.
///
/// Errors: Code::unsupported for another subclass, another part (a scale of inputs changes what the
/// weights mean), or a part that is missing or has another dtype or shape; Code::corrupt for a
/// description that is malformed.
Result<std::optional<FoundCodes>> torchao(const CodeFiles& files, const CheckpointTensor& t);

}  // namespace reshard::identify
