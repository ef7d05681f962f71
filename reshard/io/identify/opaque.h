// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds that reshard moves but does not read. Such tensors keep their bytes and
// their description in the config; whatever would change values refuses them (Model::opaque).
#pragma once

#include "reshard/io/hf/quantization.h"
#include "reshard/io/open_model.h"

namespace reshard::identify {

/// The quantisation that the configs beside the weights declare; nothing if they are
/// unreadable.
SaidQuantisation said_of(const Model& model);

/// True if the configs say that the weights are quantised, but all tensors are plain: a script
/// dequantised them and left the section there.
bool is_left_over(const ModelSpec& tensors, const SaidQuantisation& said);

/// Sets Model::opaque and Model::left_over. Call when `tensors`, `stored` and `config` are known.
void note_opaque(Model& model);

}  // namespace reshard::identify
