// SPDX-License-Identifier: Apache-2.0
// Weights as codes of small integers, by the names, dtypes and shapes of their parts: AWQ, GPTQ and
// compressed-tensors. Internals of decodings.h.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/io/hf/code_form.h"
#include "reshard/model/quant/codes.h"
#include "reshard/model/tensor.h"

namespace reshard::identify {

inline constexpr std::string_view kWeight = ".weight";
inline constexpr std::initializer_list<DType> kFloats = {DType::f16, DType::bf16, DType::f32};

/// The number of groups into which `n` elements are divided, of `size` each but for the last. Size
/// 0 stands for one group.
constexpr Index groups_of(Index n, Index size) { return size == 0 ? 1 : (n + size - 1) / size; }

/// The form required of a part: its name, one of the dtypes, and its shape.
struct WantedPart {
  std::string name;
  std::initializer_list<DType> dtypes;
  Dims shape;
};

/// The tensor that is this part of `codes`. Errors, Code::unsupported: it is missing, or has
/// another dtype or shape than the codes need.
Result<const CanonicalTensor*> find_part(const CodeForm& form, const ModelSpec& stored,
                                         const std::string& codes, const WantedPart& want);

/// A weight that is stored as codes, and its name when it is decoded.
struct NamedWeight {
  std::string name;
  CodedWeight weight;
};

/// The decoded weight of compressed-tensors' words of codes; none of other tensors.
std::optional<std::string> packed_weight(const CodeForm& form, const CanonicalTensor& t);

/// The weight whose codes `t` holds; none if `t` holds no codes. Whether its columns are in order
/// stays open if a table says it. Errors: those of find_part(); groups of different sizes.
/// @param cols the columns of a packed_weight() whose last words are not full
Result<std::optional<NamedWeight>> coded_weight(const CodeForm& form, const ModelSpec& stored,
                                                const CanonicalTensor& t,
                                                std::optional<Index> cols = {});

}  // namespace reshard::identify
