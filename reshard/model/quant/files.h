// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// The format of quantised weights in the files of a checkpoint: quant_method of its
/// quantization_config.
enum class QuantMethod : std::uint8_t {
  fp8,                 ///< DeepSeek-V3: X.weight, X.weight_scale_inv (or X.weight_scale).
  mxfp4,               ///< gpt-oss: X_blocks [.., out, in / 32, 16], X_scales.
  modelopt,            ///< X.weight (4-bit: U8 [out, in / 2]), X.weight_scale, X.weight_scale_2.
  compressed_tensors,  ///< X.weight (4-bit, or packed integers: X.weight_packed), X.weight_scale,
                       ///< X.weight_global_scale; X.weight_shape of packed integers.
  fbgemm_fp8,          ///< X.weight, X.weight_scale [out, 1], X.input_scale_ub.
  deepseek_v4,  ///< As fp8, but X.scale, and MXFP4 in X.weight I8 [out, in / 2]. Not written.
};
/// "fp8", "mxfp4", "modelopt", "compressed-tensors", "fbgemm_fp8" or "deepseek_v4".
std::string_view name(QuantMethod method);
/// One whose files can be written.
std::optional<QuantMethod> quant_method_from_name(std::string_view name);
/// The names of those, for error messages.
std::string known_quant_methods();

/// True if files of this method can be written in the format.
bool supports(QuantMethod method, const QuantFormat& format);
/// The default method for a format; none if no method supports it. `input_first`: for experts
/// stacked in one tensor (QuantChoice::input_first).
std::optional<QuantMethod> default_quant_method(const QuantFormat& format, bool input_first);

/// The stored parts of a quantised tensor.
enum class QuantPart : std::uint8_t { data, scales, factor };

/// A tensor as a file or a framework's module holds it: the same bytes, under the name, dtype and
/// shape used there.
struct FileTensor {
  std::string name;
  DType dtype = DType::u8;
  Dims shape;
};

/// A part of the quantised tensor `tensor` in the files of a checkpoint. `dtype` and `shape` are
/// those of the part's slot, in elements. Errors: columns of mxfp4 data that are not whole blocks;
/// data that are not a matrix or, for mxfp4, a stack of matrices.
Result<FileTensor> in_files(QuantMethod method, const QuantFormat& format, QuantPart part,
                            const std::string& tensor, DType dtype, const Dims& shape);

/// A part of a quantised tensor in the modules of frameworks: two 4-bit floats are one byte (U8,
/// half the last dimension), packed integers are words (I32, the first one lowest), and
/// power-of-two scales are bytes (U8). Names of 4-bit data and factors, and scale shapes of linear
/// layers, are those of `method`, by default that of the format. `name` is the name of the slot.
FileTensor in_modules(std::optional<QuantMethod> method, const QuantFormat& format, QuantPart part,
                      std::string name, DType dtype, const Dims& shape);

/// The number of elements that share a byte or, of packed integers, a word in files and modules.
Index packed_together(const QuantFormat& format);

/// The name of the tensor beside packed integers in which compressed-tensors stores their shape:
/// I64 [2], rows and columns.
std::string name_of_packed_shape(const std::string& tensor);

/// The name of the scales of "X.weight" in files of deepseek_v4: "X.scale".
std::string name_of_deepseek_scale(const std::string& tensor);

/// The suffix that a method gives to the names of scales; empty if it is scale_suffix().
std::string scale_suffix_of(QuantMethod method);

/// True for the names of an input scale, its bound, or a zero point of inputs, which a checkpoint
/// may store beside a module.
bool is_input_scale(std::string_view name);

/// True for the name of a scale of a KV cache ("...self_attn.k_scale",
/// "...self_attn.k_proj.k_scale").
bool names_cache_scale(std::string_view name);

/// True for the names of both. They keep their dtype when weights get another.
bool names_activation_scale(std::string_view name);

/// True if scales of the format that are stored as `stored` can be read as `wanted`: the same
/// dtype; BF16, F16 and F8_E8M0 as F32; F8_E8M0 as bytes; and bytes as F32 if the format's scales
/// are powers of two.
bool reads_as(DType stored, DType wanted, const QuantFormat& format);

/// True if the shapes are equal except for dimensions of size 1, which writers add or omit.
bool same_shape(const Dims& a, const Dims& b);

}  // namespace reshard
