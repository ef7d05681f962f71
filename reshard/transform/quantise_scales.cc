// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/quantise_scales.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard {
namespace {

Index blocks(Index size, std::int32_t block) {
  if (size == 0) return 0;
  return block == 0 ? 1 : (size - 1) / block + 1;
}

bool is_known(const QuantFormat& f) {
  if (f.data != DType::f8_e4m3 && f.data != DType::f4) return false;
  switch (f.scale) {
    case DType::f8_e8m0: return f.rule == ScaleRule::up || f.rule == ScaleRule::floor;
    case DType::f8_e4m3: return f.rule == ScaleRule::exact;
    case DType::f32:
      return f.rule == ScaleRule::exact || f.rule == ScaleRule::up || f.rule == ScaleRule::floor;
    default: return false;
  }
}

Result<> check_format(const QuantFormat& f) {
  const auto bad = [&](std::string_view what) {
    return fail(Code::invalid_argument, fmt::format("quantised format {}: {}", to_string(f), what));
  };
  if (!is_known(f)) {
    return bad(
        "no kernel knows these dtypes and this rule; data is F8_E4M3 or F4, and scales are F8_E8M0 "
        "(up, floor), F32 (exact, up, floor) or F8_E4M3 (exact)");
  }
  if (f.block_rows < 0 || f.block_cols < 0) return bad("a block has a negative side");
  if (f.data == DType::f4 && f.block_cols % 2 != 0) return bad("4-bit blocks need even columns");
  if (f.order != ScaleOrder::rows && f.order != ScaleOrder::swizzled)
    return bad("the order of scales is neither rows nor swizzled");
  if (f.order == ScaleOrder::swizzled && (f.block_rows != 1 || f.scale == DType::f32))
    return bad("swizzled scales are bytes of blocks of one row");
  if (f.tensor_factor && f.scale != DType::f8_e4m3)
    return bad("only F8_E4M3 scales have a factor beside them");
  if (f.zero_block != 0 && f.zero_block != 1 && f.zero_block != 127)
    return bad("the scale of a block of zeros is 0, 1 or 127");
  return {};
}

}  // namespace

Index scale_rows(const QuantFormat& format, Index rows) { return blocks(rows, format.block_rows); }

Index scale_cols(const QuantFormat& format, Index cols) { return blocks(cols, format.block_cols); }

Index scale_bytes(const QuantFormat& format, Index rows, Index cols) {
  const Index down = scale_rows(format, rows), across = scale_cols(format, cols);
  if (format.order == ScaleOrder::swizzled)
    return detail::tile_rows(down) * detail::tile_cols(across);
  return down * across * (format.scale == DType::f32 ? 4 : 1);
}

Result<> check_quant_format(const QuantFormat& format, Index rows, Index cols) {
  RESHARD_TRY(check_format(format));
  // A quarter of what fits, so that no size in bytes overflows.
  constexpr Index kMost = Index{1} << 60;
  Index elements = 0;
  if (rows < 0 || cols < 0 || rows > kMost || cols > kMost ||
      __builtin_mul_overflow(std::max<Index>(rows, detail::kTileRows),
                             std::max<Index>(cols, detail::kTileCols), &elements) ||
      elements > kMost) {
    return fail(Code::invalid_argument,
                fmt::format("quantised matrix [{}, {}]: no memory has this size", rows, cols));
  }
  if (format.data == DType::f4 && cols % 2 != 0) {
    return fail(
        Code::invalid_argument,
        fmt::format("quantised matrix [{}, {}]: rows of 4-bit data need even columns", rows, cols));
  }
  return {};
}

namespace detail {

constexpr DecodingScales::Table DecodingScales::kE8m0 = table(ScaleKind::e8m0_up);
constexpr DecodingScales::Table DecodingScales::kE4m3 = table(ScaleKind::e4m3);

void write_padding(const QuantMatrix& matrix, Index begin, Index end) {
  const Index cols = scale_cols(matrix.format, matrix.cols);
  for (Index r = begin; r < end; ++r)
    for (Index c = r < matrix.rows ? cols : 0; c < tile_cols(cols); ++c)
      matrix.scales[swizzled_place(r, c, cols)] = std::byte{0};
}

}  // namespace detail
}  // namespace reshard
