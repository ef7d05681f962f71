// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"

namespace reshard {

/// How the scale of a block follows from its largest magnitude (amax) and the largest value of the
/// data dtype (max: 448 for E4M3, 6 for E2M1; half the range for integers, 7.5 and 127.5).
enum class ScaleRule : std::uint8_t {
  exact,  ///< amax / max, rounded to the scale's dtype.
  up,     ///< amax / max rounded up to a power of two (Transformer Engine, FlashInfer, UE8M0).
  floor,  ///< 2^(floor(log2 amax) - emax of the data dtype): OCP MX v1.0, section 6.3.
};

/// The order of the scales in memory.
enum class ScaleOrder : std::uint8_t {
  rows,      ///< row-major: a row of scales for each row of blocks.
  swizzled,  ///< tensor-core order: 128 x 4 tiles of 512 bytes, tiles row-major, padded with zeros;
             ///< scale (r, c) of a tile at (r % 32) * 16 + (r / 32) * 4 + c.
};

/// A format for block-quantised matrices: value = data * scale (* the tensor factor). A matrix is
/// the last two dimensions of a tensor; leading dimensions count matrices.
///
/// If formats and block grids are equal, bytes and scales can be copied without conversion.
struct QuantFormat {
  /// f8_e4m3, or f4 (E2M1, two per byte, low nibble first). Integers: i4 (stored as the number + 8,
  /// two per byte, low nibble first), i8, and u8 (stored as the number + 128).
  DType data = DType::f8_e4m3;
  DType scale = DType::f8_e8m0;  ///< f8_e8m0, f32 or f8_e4m3; of integers bf16, f16 or f32.
  std::int32_t block_rows = 1, block_cols = 32;  ///< elements; 0: the whole dimension.
  ScaleRule rule = ScaleRule::up;
  ScaleOrder order = ScaleOrder::rows;
  /// The E8M0 byte of a block of zeros: 0, 1 or 127 (engines differ). Other scales of such a block
  /// are 1 (f32) or 0 (f8_e4m3).
  std::uint8_t zero_block = 0;
  /// NVFP4: one f32 factor per matrix, amax of the matrix / (448 * 6); block scales are relative to
  /// it.
  bool tensor_factor = false;
  /// The stored factor is the divisor of the scales (weight_global_scale of compressed-tensors).
  bool factor_divides = false;
  friend constexpr bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

/// True if the data are integers.
constexpr bool has_integers(const QuantFormat& format) {
  return format.data == DType::i4 || format.data == DType::i8 || format.data == DType::u8;
}
/// True if files and modules pack the integers into words of 32 bits.
constexpr bool has_packed_integers(const QuantFormat& format) {
  return format.data == DType::i4 || format.data == DType::u8;
}
/// True if a matrix has a single scale.
constexpr bool is_one_block(const QuantFormat& format) {
  return format.block_rows == 0 && format.block_cols == 0;
}
/// True if quantising needs the largest magnitude (amax) of the whole matrix first.
constexpr bool needs_amax(const QuantFormat& format) {
  return format.tensor_factor || is_one_block(format);
}

/// The formats with names: "mxfp8" (1 x 32, E8M0 up), "mxfp8_floor", "mxfp8_swizzled",
/// "mxfp4", "mxfp4_floor", "mxfp4_swizzled", "nvfp4", "nvfp4_swizzled", "nvfp4_divisor" (the factor
/// divides), "fp8_block" (128 x 128,
/// f32), "fp8_block_pow2" (f32 powers of two), "fp8_group" (1 x 128, f32), "fp8_group_pow2",
/// "fp8_channel" (a row, f32), "fp8_tensor" (a matrix, f32); symmetric integers of
/// compressed-tensors with scales in bf16: "int4_group32", "int4_group64", "int4_group128",
/// "int4_channel", "int8_channel", and packed "int8_packed_group128", "int8_packed_channel". None
/// for another name.
std::optional<QuantFormat> quant_format_from_name(std::string_view name);

/// The name of the format, or, if it has none, a description: "F8_E4M3 128x128 F32 exact".
std::string to_string(const QuantFormat& format);

/// All names, for error messages: "mxfp8, mxfp8_floor, ...".
std::string known_quant_formats();

}  // namespace reshard
