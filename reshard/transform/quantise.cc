// SPDX-License-Identifier: Apache-2.0
// Processes one band (row of blocks) at a time, in parts of columns that stay in the caches between
// two passes: the largest magnitudes, then the casts.
#include "reshard/transform/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "reshard/base/check.h"
#include "reshard/transform/kernels/quantise_kernels.h"
#include "reshard/transform/kernels/quantise_scales.h"
#include "reshard/transform/simd.h"

namespace reshard {
namespace {

using kernels::QuantiseKernels;
using kernels::ScalePlaces;

/// Blocks per part, and bytes of the source that must stay cached between both passes.
constexpr Index kPartBlocks = 128, kQuantisePartBytes = Index{256} << 10;
constexpr Index kFloatBytes = 4;

const QuantiseKernels& quantise_kernels() {
  static const bool kHasAvx2 = kernels::has_avx2_quantise_kernels();
  switch (simd_level()) {
    case SimdLevel::avx512: return kernels::avx512_quantise_kernels();
    case SimdLevel::avx2:
      if (kHasAvx2) return kernels::avx2_quantise_kernels();
      break;
    case SimdLevel::neon: return kernels::neon_quantise_kernels();
    case SimdLevel::portable: break;
  }
  return kernels::portable_quantise_kernels();
}

const QuantiseKernels::OfSource& of_dtype(const QuantiseKernels& k, DType dtype) {
  return dtype == DType::bf16 ? k.bf16 : dtype == DType::f16 ? k.f16 : k.f32;
}

Index bytes_of_element(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

bool is_plain(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

/// Bytes of `cols` elements of the data.
Index data_bytes(const QuantFormat& format, Index cols) { return size_of(format.data, cols); }

ScaleMaker maker_of(const QuantFormat& format, float matrix_amax) {
  return scale_maker(scale_kind(format), code_kind(format), format.zero_block, format.tensor_factor,
                     format.factor_divides, matrix_amax);
}

/// True if every block of the rows that begin at `first`, `row_bytes` apart, begins at a multiple
/// of `unit`.
bool are_aligned(const std::byte* first, Index row_bytes, Index block_bytes, Index unit) {
  const auto address = static_cast<Index>(reinterpret_cast<std::uintptr_t>(first) & 0xffffU);
  return address % unit == 0 && row_bytes % unit == 0 && block_bytes % unit == 0;
}

/// Short pieces of rows end before the hardware prefetcher starts.
constexpr Index kRowsAhead = 3;

void prefetch(const std::byte* first, Index bytes) {
  for (Index at = 0; at < bytes; at += 64) __builtin_prefetch(first + at);
}

/// Quantises bands of one matrix.
class Bands {
 public:
  Bands(const FloatMatrix& src, const QuantMatrix& dst, float matrix_amax, const BlockAmaxes& given,
        CopyHint hint)
      : src_(src),
        dst_(dst),
        given_(given),
        source_(of_dtype(kernels_, src.dtype)),
        maker_(maker_of(dst.format, matrix_amax)),
        places_(dst),
        block_(dst.format.block_cols == 0 ? src.cols : dst.format.block_cols),
        matrix_amax_(float_bits(matrix_amax) & kFloatMagnitude),
        streams_(hint == CopyHint::streaming &&
                 are_aligned(dst.data, dst.row_bytes, data_bytes(dst.format, block_),
                             kernels::stream_unit(maker_.data))) {}

  /// Rows [begin, end): one row of blocks, or any rows of a single-block matrix.
  void run(Index begin, Index end) {
    const Index blocks = scale_cols(dst_.format, src_.cols);
    const Index fit = kQuantisePartBytes / (bytes_of_element(src_.dtype) * (end - begin)) / block_;
    const Index step = std::clamp<Index>(fit, 1, kPartBlocks);
    for (Index first = 0; first < blocks; first += step)
      part(begin, end, first, std::min(first + step, blocks));
  }

  /// As stored.
  float factor(bool divides) const { return divides ? maker_.inverse_factor : maker_.factor; }

 private:
  /// Quantises blocks [first, last) of the band.
  void part(Index begin, Index end, Index first, Index last) {
    const Index col = first * block_, n = std::min(last * block_, src_.cols) - col;
    const std::byte* const src = src_.data + col * bytes_of_element(src_.dtype);
    std::byte* const data = dst_.data + data_bytes(dst_.format, col);
    make_scales(src, begin, end, n, first, last - first);
    // The range that contains the first row writes the scale of a single-block matrix.
    if (!is_one_block(dst_.format) || begin == 0) write_scales(begin, first, last);
    // While this part is encoded, the source of the next one is prefetched: the same rows further
    // on, or the rows of the next band.
    const std::byte* next = last * block_ < src_.cols ? src + n * bytes_of_element(src_.dtype)
                                                      : src_.data + (end - begin) * src_.row_bytes;
    if (last * block_ >= src_.cols && 2 * end - begin > src_.rows) next = src;
    for (Index r = begin; r < end; ++r) {
      const std::byte* const row = src + r * src_.row_bytes;
      encoder(row, n)(row, data + r * dst_.row_bytes, n, block_, by_.data(), streams_,
                      next + r * src_.row_bytes);
    }
  }

  void make_scales(const std::byte* src, Index begin, Index end, Index n, Index first,
                   Index blocks) {
    constexpr Index kTogether = kernels::kScalesTogether;
    const Index made = (blocks + kTogether - 1) / kTogether * kTogether;
    std::array<std::uint32_t, kPartBlocks> maxima;
    std::fill_n(maxima.begin(), blocks, 0U);
    // Pads with ordinary numbers: zeros would be slower.
    std::fill_n(maxima.begin() + blocks, made - blocks, kFloatOne);
    if (is_one_block(dst_.format)) {
      maxima[0] = matrix_amax_;
    } else {
      for (Index r = begin; r < end; ++r) {
        const std::byte* const row = src + r * src_.row_bytes;
        if (r + kRowsAhead < end)
          prefetch(row + kRowsAhead * src_.row_bytes, n * bytes_of_element(src_.dtype));
        source_.amaxes(row, n, block_, maxima.data());
      }
    }
    if (given_.first != nullptr && !is_one_block(dst_.format))
      take_given(begin, first, std::span(maxima).first(static_cast<std::size_t>(blocks)));
    kernels_.scales(maker_, maxima.data(), made, stored_.data(), by_.data());
  }

  /// Replaces the amaxes of blocks from `first` on by those that the caller gives.
  void take_given(Index begin, Index first, std::span<std::uint32_t> maxima) {
    const Index row = dst_.format.block_rows == 0 ? 0 : begin / dst_.format.block_rows;
    const std::byte* at = given_.first + row * given_.row_bytes + first * kFloatBytes;
    above_given_ = false;
    for (std::uint32_t& maximum : maxima) {
      std::uint32_t given = 0;
      std::memcpy(&given, at, sizeof given);
      given &= kFloatMagnitude;
      above_given_ |= maximum > given;
      maximum = given;
      at += kFloatBytes;
    }
  }

  /// The function that encodes n elements of a row.
  QuantiseKernels::Encode encoder(const std::byte* src, Index n) const {
    const auto kind = static_cast<std::size_t>(maker_.data);
    const auto choose = [&](const QuantiseKernels::OfSource& source) {
      return divides(maker_.kind) ? source.divide[kind] : source.multiply[kind];
    };
    // F16 ends at 65504: with such a scale quotients may be above the largest number, which only
    // the portable kernels accept.
    if (maker_.kind == ScaleKind::f16_exact)
      return choose(of_dtype(kernels::portable_quantise_kernels(), src_.dtype));
    // The caller's amaxes may be too small, or miss a NaN.
    if (!is_one_block(dst_.format))
      return choose(above_given_ ? of_dtype(kernels::portable_quantise_kernels(), src_.dtype)
                                 : source_);
    std::uint32_t maximum = 0;
    source_.amaxes(src, n, n, &maximum);
    return choose(maximum > matrix_amax_
                      ? of_dtype(kernels::portable_quantise_kernels(), src_.dtype)
                      : source_);
  }

  void write_scales(Index begin, Index first, Index last) {
    const Index row = dst_.format.block_rows == 0 ? 0 : begin / dst_.format.block_rows;
    places_.write(row, first, {stored_.data(), static_cast<std::size_t>(last - first)});
  }

  const FloatMatrix& src_;
  const QuantMatrix& dst_;
  const BlockAmaxes& given_;
  bool above_given_ = false;  ///< an element of the part is larger than its block's given amax.
  const QuantiseKernels& kernels_ = quantise_kernels();
  const QuantiseKernels::OfSource& source_;
  ScaleMaker maker_;
  ScalePlaces places_;
  Index block_;
  std::uint32_t matrix_amax_;
  bool streams_;
  std::array<std::uint32_t, kPartBlocks> stored_;
  std::array<float, kPartBlocks> by_;
};

Index blocks(Index size, std::int32_t block) {
  if (size == 0) return 0;
  return block == 0 ? 1 : (size - 1) / block + 1;
}

bool is_known(const QuantFormat& f) {
  if (has_integers(f))
    return f.rule == ScaleRule::exact &&
           (f.scale == DType::bf16 || f.scale == DType::f16 || f.scale == DType::f32);
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
        "(up, floor), F32 (exact, up, floor) or F8_E4M3 (exact); or data is I4, I8 or U8, and "
        "scales are BF16, F16 or F32 (exact)");
  }
  if (f.block_rows < 0 || f.block_cols < 0) return bad("a block has a negative side");
  if (bits(f.data) == 4 && f.block_cols % 2 != 0) return bad("4-bit blocks need even columns");
  if (f.order != ScaleOrder::rows && f.order != ScaleOrder::swizzled)
    return bad("the order of scales is neither rows nor swizzled");
  if (f.order == ScaleOrder::swizzled && (f.block_rows != 1 || bits(f.scale) != 8))
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
  if (format.order == ScaleOrder::swizzled) return scale_tile_rows(down) * scale_tile_cols(across);
  return size_of(format.scale, down * across);
}

Result<> check_quant_format(const QuantFormat& format, Index rows, Index cols) {
  RESHARD_TRY(check_format(format));
  // A quarter of the range, so that no size in bytes overflows.
  constexpr Index kMax = Index{1} << 60;
  Index elements = 0;
  if (rows < 0 || cols < 0 || rows > kMax || cols > kMax ||
      __builtin_mul_overflow(std::max<Index>(rows, kScaleTileRows),
                             std::max<Index>(cols, kScaleTileCols), &elements) ||
      elements > kMax) {
    return fail(Code::invalid_argument,
                fmt::format("quantised matrix [{}, {}]: no memory has this size", rows, cols));
  }
  if (bits(format.data) == 4 && cols % 2 != 0) {
    return fail(
        Code::invalid_argument,
        fmt::format("quantised matrix [{}, {}]: rows of 4-bit data need even columns", rows, cols));
  }
  return {};
}

float amax(const FloatMatrix& matrix) {
  RESHARD_CHECK(is_plain(matrix.dtype));
  std::uint32_t maximum = 0;
  if (matrix.cols == 0) return 0;
  for (Index r = 0; r < matrix.rows; ++r)
    of_dtype(quantise_kernels(), matrix.dtype)
        .amaxes(matrix.data + r * matrix.row_bytes, matrix.cols, matrix.cols, &maximum);
  return bits_float(maximum);
}

void block_amaxes(const FloatMatrix& src, const QuantFormat& format, Index begin, Index end,
                  const BlockAmaxes& out) {
  RESHARD_CHECK(is_plain(src.dtype));
  if (begin == end || src.cols == 0) return;
  const auto amaxes = of_dtype(quantise_kernels(), src.dtype).amaxes;
  const Index down = format.block_rows == 0 ? end - begin : Index{format.block_rows};
  const Index across = format.block_cols == 0 ? src.cols : Index{format.block_cols};
  const Index blocks = scale_cols(format, src.cols);
  std::byte* to = out.first + (format.block_rows == 0 ? 0 : begin / down * out.row_bytes);
  std::array<std::uint32_t, kPartBlocks> maxima;
  for (Index row = begin; row < end; row += down, to += out.row_bytes) {
    for (Index first = 0; first < blocks; first += kPartBlocks) {
      const Index n = std::min(kPartBlocks, blocks - first), col = first * across;
      std::fill_n(maxima.begin(), n, 0U);
      for (Index r = row; r < std::min(row + down, end); ++r)
        amaxes(src.data + r * src.row_bytes + col * bytes_of_element(src.dtype),
               std::min(n * across, src.cols - col), across, maxima.data());
      std::memcpy(to + first * kFloatBytes, maxima.data(),
                  static_cast<std::size_t>(n * kFloatBytes));
    }
  }
}

void quantise_rows(const FloatMatrix& src, const QuantMatrix& dst, Index begin, Index end,
                   float matrix_amax, CopyHint hint) {
  quantise_rows(src, dst, begin, end, matrix_amax, BlockAmaxes{}, hint);
}

void quantise_rows(const FloatMatrix& src, const QuantMatrix& dst, Index begin, Index end,
                   float matrix_amax, const BlockAmaxes& blocks, CopyHint hint) {
  RESHARD_CHECK(is_plain(src.dtype));
  const Index rows = dst.rows, block = dst.format.block_rows;
  Bands bands(src, dst, matrix_amax, blocks, hint);
  if (dst.format.tensor_factor && begin == 0) {
    const float factor = bands.factor(dst.format.factor_divides);
    std::memcpy(dst.factor, &factor, sizeof factor);
  }
  if (begin == end || src.cols == 0) return;
  if (block == 0) {
    bands.run(begin, end);
  } else {
    for (Index r = begin; r < end; r += block) bands.run(r, std::min(r + block, end));
  }
  if (dst.format.order == ScaleOrder::swizzled)
    kernels::write_padding(dst, begin, end == rows ? scale_tile_rows(rows) : end);
  copy_fence();
}

void quantise(const FloatMatrix& src, const QuantMatrix& dst, CopyHint hint) {
  const bool needed = needs_amax(dst.format);
  quantise_rows(src, dst, 0, src.rows, needed ? amax(src) : 0, hint);
}

void dequantise_rows(const QuantMatrix& src, const FloatMatrix& dst, Index begin, Index end,
                     CopyHint hint) {
  RESHARD_CHECK(is_plain(dst.dtype));
  const Index block = src.format.block_cols == 0 ? src.cols : src.format.block_cols;
  const Index blocks = scale_cols(src.format, src.cols);
  const ScalePlaces places(src);
  float factor = 1;
  if (src.format.tensor_factor) std::memcpy(&factor, src.factor, sizeof factor);
  const kernels::DecodingScales decoding(scale_kind(src.format), factor, src.format.factor_divides);
  const auto decode = of_dtype(quantise_kernels(), dst.dtype)
                          .decode[static_cast<std::size_t>(code_kind(src.format))];
  const bool stream = hint == CopyHint::streaming &&
                      are_aligned(dst.data, dst.row_bytes, block * bytes_of_element(dst.dtype),
                                  kernels::kStreamNumbers * bytes_of_element(dst.dtype));
  std::array<float, kPartBlocks> scales;
  for (Index r = begin; r < end; ++r) {
    const Index row = src.format.block_rows == 0 ? 0 : r / src.format.block_rows;
    for (Index first = 0; first < blocks; first += kPartBlocks) {
      const Index last = std::min(first + kPartBlocks, blocks), col = first * block;
      places.read(row, first, decoding, {scales.data(), static_cast<std::size_t>(last - first)});
      decode(src.data + r * src.row_bytes + data_bytes(src.format, col),
             dst.data + r * dst.row_bytes + col * bytes_of_element(dst.dtype),
             std::min(last * block, src.cols) - col, block, scales.data(), stream);
    }
  }
  copy_fence();
}

namespace kernels {

constexpr DecodingScales::Table DecodingScales::kE8m0 = table(ScaleKind::e8m0_up);
constexpr DecodingScales::Table DecodingScales::kE4m3 = table(ScaleKind::e4m3);

void write_padding(const QuantMatrix& matrix, Index begin, Index end) {
  const Index cols = scale_cols(matrix.format, matrix.cols);
  for (Index r = begin; r < end; ++r)
    for (Index c = r < matrix.rows ? cols : 0; c < scale_tile_cols(cols); ++c)
      matrix.scales[swizzled_scale_offset(r, c, cols)] = std::byte{0};
}

}  // namespace kernels
}  // namespace reshard
