// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// How a checkpoint's files hold quantised weights: quant_method of its quantization_config.
enum class QuantMethod : std::uint8_t {
  fp8,                 ///< DeepSeek-V3: X.weight, X.weight_scale_inv (or X.weight_scale).
  mxfp4,               ///< gpt-oss: X_blocks [.., out, in / 32, 16], X_scales.
  modelopt,            ///< X.weight (4-bit: U8 [out, in / 2]), X.weight_scale, X.weight_scale_2.
  compressed_tensors,  ///< X.weight (4-bit: X.weight_packed), X.weight_scale,
                       ///< X.weight_global_scale.
};
/// "fp8", "mxfp4", "modelopt" or "compressed-tensors".
std::string_view name(QuantMethod method);
std::optional<QuantMethod> quant_method_from_name(std::string_view name);
/// All names, for messages.
std::string known_quant_methods();

/// True when files of this method can hold the format.
bool supports(QuantMethod method, const QuantFormat& format);
/// The method that writes a format where nothing else is said; none where no method can.
/// `input_first`: of experts that are one tensor each (QuantChoice::input_first).
std::optional<QuantMethod> default_quant_method(const QuantFormat& format, bool input_first);

/// What of a quantised tensor is stored.
enum class QuantPart : std::uint8_t { data, scales, factor };

/// A tensor as a file or a framework's module has it: the same bytes, under their name for them.
struct FileTensor {
  std::string name;
  DType dtype = DType::u8;
  Dims shape;
};

/// A part of the quantised tensor `tensor` in a checkpoint's files; `dtype` and `shape` are those
/// of the part's slot, in elements. Errors: columns of mxfp4's data that are not whole blocks;
/// data that are no matrix or, of mxfp4, no stack of matrices.
Result<FileTensor> in_files(QuantMethod method, const QuantFormat& format, QuantPart part,
                            const std::string& tensor, DType dtype, const Dims& shape);

/// A part of a quantised tensor as frameworks' modules hold it: two 4-bit elements are a byte (U8,
/// half the last dimension), and scales that are powers of two are bytes (U8). Names of 4-bit data
/// and factors, and shapes of linear layers' scales, are those of the method that engines were told
/// or, where there is none, of the format's usual one. `name` is the slot's.
FileTensor in_modules(std::optional<QuantMethod> method, const QuantFormat& format, QuantPart part,
                      std::string name, DType dtype, const Dims& shape);

/// What follows a tensor's name in that of its scales where a method names it otherwise than
/// scale_suffix() does; else empty.
std::string scale_suffix_of(QuantMethod method);

/// True for the name of what a calibrated checkpoint scales a module's input by.
bool is_input_scale(std::string_view name);

/// True when scales of a dtype can be read as another: as they are, or BF16 and F16 as F32.
bool reads_as(DType stored, DType wanted);

/// Writers disagree about dimensions of one element: true when the shapes are equal but for those.
bool same_shape(const Dims& a, const Dims& b);

}  // namespace reshard
