// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// The tensors of a checkpoint as if none were quantised.
struct PlainTensors {
  ModelSpec tensors;   ///< what is stored without scales and factors, quantised data as `values`.
  QuantChoice stored;  ///< which tensors are quantised; their grid is their own.
};

/// Takes a quantised checkpoint's tensors apart. Which are data is what their names, dtypes and
/// shapes say by `method` or, where there is none, in the names of layouts: those in the format's
/// data dtype and of two dimensions or more. They have scales (and factors) beside them. Errors:
/// scales that are missing, or of another dtype or shape than the format's (both named).
Result<PlainTensors> plain_tensors(const ModelSpec& stored, const QuantFormat& format,
                                   std::optional<QuantMethod> method, DType values);

/// True for one number that scales a KV cache, beside an attention module
/// ("...self_attn.k_scale", "...self_attn.k_proj.k_scale"): an engine has one of its own where it
/// is given none.
bool is_cache_scale(const CanonicalTensor& tensor);

/// True for one number that scales activations, an ordinary tensor that a checkpoint may have
/// beyond those of its config: of a KV cache beside an attention module ("...self_attn.k_scale",
/// "...self_attn.k_proj.k_scale"), or of the input of a module that `stored` has the weight of.
bool is_activation_scale(const CanonicalTensor& tensor, const ModelSpec& stored);

/// True when the module of each of these weights has a scale of its input in the layout.
bool has_input_scales(const ModelLayout& layout, const std::set<std::string>& weights);
bool has_input_scales(const ModelSpec& tensors, const std::set<std::string>& weights);

/// The modules whose matrices a choice leaves as they are, embeddings left out: what a config lists
/// as modules_to_not_convert.
std::vector<std::string> plain_modules(const ModelSpec& values, const QuantChoice& choice);

}  // namespace reshard
