// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// The formats that weights of a checkpoint may have.
struct StoredFormats {
  std::vector<QuantFormat> all;  ///< one or more. Scales of integers have the dtype that is stored.
  std::map<std::string, QuantFormat> of_module;  ///< as is said of modules, by name.
};

/// The tensors of a quantised checkpoint as they are after dequantisation.
struct PlainTensors {
  ModelSpec tensors;   ///< without scales and factors; quantised ones have the dtype `values`.
  QuantChoice stored;  ///< which tensors are quantised; each has its own block grid.
};

/// Separates the quantised data of a checkpoint from its scales and factors. Data are recognised by
/// name, dtype and shape as `method` stores them or, without a method, as layouts do: tensors of
/// a format's data dtype with two dimensions or more. Of several formats, a tensor has that of its
/// module, or the one that it and its scales fit. Errors: scales that are missing, or of
/// another dtype or shape than the format's (both are named); a tensor that fits two formats whose
/// blocks differ.
Result<PlainTensors> plain_tensors(const ModelSpec& stored, const StoredFormats& formats,
                                   std::optional<QuantMethod> method, DType values);

/// True if some quantised "X.weight" has its scales in "X.scale", as files of deepseek_v4.
bool has_deepseek_scales(const ModelSpec& stored);

/// True for the scale of a KV cache: one number beside an attention module ("...self_attn.k_scale",
/// "...self_attn.k_proj.k_scale"). An engine that is given none keeps its own.
bool is_cache_scale(const CanonicalTensor& tensor);

/// True for the scale of activations, one number that a checkpoint may have in addition to the
/// tensors of its config: a scale of a KV cache, or the input scale of a module whose weight is in
/// `stored`.
bool is_activation_scale(const CanonicalTensor& tensor, const ModelSpec& stored);

/// True if the module of each of these weights has an input scale in the layout.
bool has_input_scales(const ModelLayout& layout, const std::set<std::string>& weights);
bool has_input_scales(const ModelSpec& tensors, const std::set<std::string>& weights);

/// The modules whose matrices are not quantised, except embeddings: a config's
/// modules_to_not_convert.
std::vector<std::string> plain_modules(const ModelSpec& values, const QuantChoice& choice);

}  // namespace reshard
