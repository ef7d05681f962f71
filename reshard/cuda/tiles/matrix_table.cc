// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/matrix_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "reshard/base/value_map.h"
#include "reshard/cuda/tiles/vector_codes.h"
#include "reshard/transform/scale_kind.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard::cuda {
namespace {

constexpr Index kMaxElements = Index{1} << 31;
constexpr Index kAtOnce = 8;

Index width(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

std::uint32_t narrow(Index n) { return static_cast<std::uint32_t>(n); }

bool is_multiple(const void* at, Index row_bytes, Index of) {
  return reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(of) == 0 &&
         row_bytes % of == 0;
}

Result<> check_rows(const MatrixSlice& s) {
  if (!is_convertible(s.values.dtype))
    return fail(Code::invalid_argument, fmt::format("values of {}", name(s.values.dtype)));
  const Index n = s.values.rows, cols = s.values.cols;
  if (n < 0 || cols < 0 || s.begin < 0 || s.rows < 0 || n > s.rows || s.begin > s.rows - n)
    return fail(Code::invalid_argument, fmt::format("{} rows from {} of a matrix of {} rows and {} "
                                                    "columns",
                                                    n, s.begin, s.rows, cols));
  if (n >= kMaxElements || cols >= kMaxElements)
    return fail(Code::unsupported,
                fmt::format("a GPU takes matrices of fewer than 2^31 rows and columns, not [{}, "
                            "{}]",
                            n, cols));
  return {};
}

/// True if the rows can be worked on alone.
bool has_whole_blocks(const MatrixSlice& s, MatrixWork work) {
  const QuantFormat& f = s.stored.format;
  if (is_one_block(f)) return true;
  const Index end = s.begin + s.values.rows;
  const Index step = f.order == ScaleOrder::swizzled ? kScaleTileRows : f.block_rows;
  if (step == 0) return s.begin == 0 && end == s.rows;
  return s.begin % step == 0 &&
         (work == MatrixWork::dequantise || end == s.rows || end % step == 0);
}

Result<> check_blocks(const MatrixSlice& s, MatrixWork work) {
  const QuantFormat& f = s.stored.format;
  const Index n = s.values.rows;
  if (!has_whole_blocks(s, work))
    return fail(Code::invalid_argument,
                fmt::format("rows [{}, {}) of {} are not whole blocks of {}", s.begin, s.begin + n,
                            s.rows, to_string(f)));
  const Index down = f.block_rows == 0 ? n : std::min<Index>(n, f.block_rows),
              across =
                  f.block_cols == 0 ? s.values.cols : std::min<Index>(s.values.cols, f.block_cols);
  if (!is_one_block(f) && down * across >= kMaxElements)
    return fail(
        Code::unsupported,
        fmt::format("a GPU takes blocks of fewer than 2^31 elements, not [{}, {}]", down, across));
  return {};
}

Result<> check_alignment(const MatrixSlice& s, MatrixWork work) {
  const FloatMatrix& values = s.values;
  const QuantMatrix& stored = s.stored;
  const bool is_stored = work != MatrixWork::amax;
  const Index scale = bits(stored.format.scale) / 8;
  if (is_multiple(values.data, values.row_bytes, width(values.dtype)) &&
      is_multiple(s.amax, 0, 4) &&
      (!is_stored || is_multiple(stored.scales, stored.scale_row_bytes, scale)) &&
      (!is_stored || !stored.format.tensor_factor || is_multiple(stored.factor, 0, 4)))
    return {};
  return fail(Code::unsupported,
              "a GPU quantises only values, scales, factors and maxima that are aligned to their "
              "size");
}

Result<> check(const MatrixSlice& s, MatrixWork work) {
  RESHARD_TRY(check_rows(s));
  if (work != MatrixWork::amax) {
    RESHARD_TRY(check_quant_format(s.stored.format, s.rows, s.values.cols));
    if (s.stored.rows != s.values.rows || s.stored.cols != s.values.cols)
      return fail(Code::invalid_argument,
                  fmt::format("[{}, {}] values, but [{}, {}] elements of data", s.values.rows,
                              s.values.cols, s.stored.rows, s.stored.cols));
    RESHARD_TRY(check_blocks(s, work));
  }
  const bool uses_amax =
      work == MatrixWork::amax || (work == MatrixWork::quantise && needs_amax(s.stored.format));
  if (uses_amax && s.amax == nullptr)
    return fail(Code::invalid_argument, "there is no address of the largest magnitude");
  return check_alignment(s, work);
}

/// 8, if 8 values and their codes are never apart and always aligned; else as few as a byte of data
/// has.
std::uint8_t at_once(const FloatMatrix& values, const QuantMatrix& stored, Index block_cols) {
  const bool halves = bits(stored.format.data) == 4;
  const Index bytes = halves ? kAtOnce / 2 : kAtOnce;
  const bool aligned = is_multiple(values.data, values.row_bytes, 16) &&
                       is_multiple(stored.data, stored.row_bytes, bytes) &&
                       (block_cols % kAtOnce == 0 || block_cols >= values.cols);
  return aligned ? kAtOnce : halves ? 2 : 1;
}

MatrixPair values_of(const MatrixSlice& s) {
  MatrixPair m;
  m.values = s.values.data;
  m.values_row = s.values.row_bytes;
  m.dtype = s.values.dtype;
  m.rows = narrow(s.values.rows);
  m.cols = narrow(s.values.cols);
  return m;
}

void add_format(MatrixPair& m, const QuantFormat& f) {
  m.block_rows = f.block_rows == 0 ? m.rows : static_cast<std::uint32_t>(f.block_rows);
  m.block_cols = f.block_cols == 0 ? m.cols : static_cast<std::uint32_t>(f.block_cols);
  m.rows_of_block = divisor(std::max(m.block_rows, 1U));
  m.cols_of_block = divisor(std::max(m.block_cols, 1U));
  m.scale_cols = narrow(scale_cols(f, m.cols));
  m.scale = scale_kind(f);
  m.codes = code_kind(f);
  m.zero_block = f.zero_block;
  m.scale_width = static_cast<std::uint8_t>(bits(f.scale) / 8);
  m.swizzled = f.order == ScaleOrder::swizzled;
  m.one_block = is_one_block(f);
  m.needs_amax = reshard::needs_amax(f);
  m.has_factor = f.tensor_factor;
  m.factor_divides = f.factor_divides;
}

/// True if tiles keep the limits of TileVectors<8>.
bool has_vectors(const MatrixPair& m) {
  constexpr std::uint64_t kMax = std::uint64_t{kAtOnce} << 15;  // A tile has a block at least.
  const std::uint64_t block = m.one_block ? m.cols : std::uint64_t{m.block_rows} * m.block_cols;
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 31;
  const auto near = [](std::int64_t row) { return row >= 0 && row < kMaxBytes; };
  return m.at_once == kAtOnce && m.cols % kAtOnce == 0 && block <= kMax && near(m.values_row) &&
         near(m.data_row) && near(m.scales_row);
}

/// True if they also are of sixteen values, with codes at multiples of their size, all of one
/// block.
bool has_sixteens(const MatrixPair& m) {
  const Index bytes = 2 * code_bits(m.codes);
  return m.cols % 16 == 0 && is_multiple(m.data, m.data_row, bytes) &&
         (m.block_cols % 16 == 0 || m.one_block);
}

MatrixWay fastest_way(const MatrixPair& m, MatrixWork work) {
  if (!has_vectors(m)) return MatrixWay::phases;
  if (work == MatrixWork::amax) return MatrixWay::vectors;
  if (!takes_scale(m.codes, m.scale)) return MatrixWay::phases;
  if (work == MatrixWork::dequantise) return MatrixWay::vectors;
  const std::uint32_t cols = m.block_cols;
  const bool is_group = cols == 16 || cols == 32 || cols == 64 || cols == 128;
  if (m.one_block || (m.block_rows == 1 && is_group && m.cols % cols == 0))
    return has_sixteens(m) ? MatrixWay::vectors : MatrixWay::phases;
  // A smaller block leaves threads idle.
  constexpr std::uint64_t kLeast = 2048;
  const std::uint64_t elements = std::uint64_t{m.block_rows} * cols;
  return kLeast <= elements && elements <= kTileElements ? MatrixWay::held : MatrixWay::phases;
}

MatrixWay way_of(const MatrixPair& m, MatrixWork work) {
  const MatrixWay way = fastest_way(m, work);
  // Magnitudes have no codes.
  return work == MatrixWork::amax || has_kernel(way, m.dtype, m.codes) ? way : MatrixWay::phases;
}

const char* text(CodeKind kind) {
  switch (kind) {
    case CodeKind::e4m3: return "e4m3";
    case CodeKind::e2m1: return "e2m1";
    case CodeKind::int4: return "int4";
    case CodeKind::int8: return "int8";
    case CodeKind::uint8: break;
  }
  return "uint8";
}

}  // namespace

std::string kernel_name(MatrixWork work, const MatrixPair& matrix) {
  if (work == MatrixWork::amax) return kAmaxKernel;
  const char* const kernel = work == MatrixWork::quantise ? kQuantiseKernel : kDequantiseKernel;
  if (matrix.way == MatrixWay::phases) return kernel;
  const char* const way = matrix.way == MatrixWay::held ? "held" : "vectors";
  return fmt::format("{}_{}_{}_{}", kernel, way, kernel_suffix(matrix.dtype), text(matrix.codes));
}

Result<> MatrixTable::add(const MatrixSlice& slice) {
  RESHARD_TRY(check(slice, work_));
  if (work_ == MatrixWork::amax) {
    add_values(slice);
  } else {
    add_stored(slice);
  }
  return {};
}

void MatrixTable::add_values(const MatrixSlice& slice) {
  const std::uint32_t first = narrow(std::ssize(tiles_));
  if (slice.values.rows > 0 && slice.values.cols > 0) {
    MatrixPair m = values_of(slice);
    // Long rows are cut. A block is a part of a tile only: nothing is found for it.
    m.block_rows = 1;
    m.block_cols = narrow(std::min(slice.values.cols, Index{kTileElements}));
    m.scale_cols = (m.cols + m.block_cols - 1) / m.block_cols;
    m.at_once = is_multiple(m.values, m.values_row, 16) ? kAtOnce : 1;
    m.way = way_of(m, work_);
    add_tiles(m);
    matrices_.push_back(m);
  }
  amaxes_.push_back({first, narrow(std::ssize(tiles_)), slice.amax});
}

void MatrixTable::add_stored(const MatrixSlice& slice) {
  const QuantMatrix& stored = slice.stored;
  MatrixPair m = values_of(slice);
  add_format(m, stored.format);
  m.data = stored.data;
  m.data_row = stored.row_bytes;
  m.scales = stored.scales;
  m.scales_row = stored.scale_row_bytes;
  m.factor = reinterpret_cast<float*>(stored.factor);
  m.amax = slice.amax;
  m.is_first = slice.begin == 0;
  const bool is_last = slice.begin + slice.values.rows == slice.rows;
  m.padded_rows =
      m.swizzled && is_last ? narrow(scale_tile_rows(slice.rows) - slice.begin) : m.rows;
  m.at_once = at_once(slice.values, stored, m.block_cols);
  m.way = way_of(m, work_);
  if (m.rows > 0 && m.cols > 0) {
    add_tiles(m);
  } else if (work_ == MatrixWork::quantise && m.has_factor && m.is_first) {
    tiles_.push_back({narrow(std::ssize(matrices_)), 0, 0, 0, 0});  // Writes the factor only.
  } else {
    return;
  }
  matrices_.push_back(m);
}

void MatrixTable::add_tiles(const MatrixPair& m) {
  // Blocks across, then rows of blocks down, up to the size of a tile. The only block of a matrix
  // is cut into rows.
  const Index block_rows = m.one_block ? 1 : m.block_rows;
  const Index fit = m.way == MatrixWay::held
                        ? 1
                        : std::max<Index>(1, Index{kTileElements} / (block_rows * m.block_cols));
  // Only phases hold something of each block.
  const Index most = m.way == MatrixWay::phases ? Index{kTileSlots} : fit;
  const Index across = std::min({most, Index{m.scale_cols}, fit});
  const Index down = std::clamp<Index>(fit / across, 1, most / across) * block_rows;
  for (Index row = 0; row < m.rows; row += down)
    for (Index block = 0; block < m.scale_cols; block += across)
      tiles_.push_back({narrow(std::ssize(matrices_)), narrow(row),
                        narrow(std::min(row + down, Index{m.rows})), narrow(block),
                        narrow(std::min(block + across, Index{m.scale_cols}))});
}

/// Puts the tiles of a kernel beside each other.
void MatrixTable::add_launches(std::uint32_t first_tile) {
  const auto kernel = [&](const MatrixTile& tile) {
    const MatrixPair& m = matrices_[tile.matrix];
    return std::tuple(m.way, m.dtype, m.codes);
  };
  if (work_ != MatrixWork::amax)  // Whose order gives each tile its place.
    std::stable_sort(tiles_.begin() + first_tile, tiles_.end(),
                     [&](const auto& a, const auto& b) { return kernel(a) < kernel(b); });
  for (std::uint32_t i = first_tile; i < tiles_.size(); ++i) {
    if (i == first_tile || kernel(tiles_[i]) != kernel(tiles_[i - 1]))
      launches_.push_back({kernel_name(work_, matrices_[tiles_[i].matrix]), i, i});
    launches_.back().end_tile = i + 1;
  }
}

void MatrixTable::end_level() {
  const Level before = levels_.empty() ? Level{} : levels_.back();
  const std::uint32_t first_tile = launches_.empty() ? 0 : launches_.back().end_tile;
  add_launches(first_tile);
  levels_.push_back({before.end_launch, narrow(std::ssize(launches_)), before.end_amax,
                     narrow(std::ssize(amaxes_))});
}

Result<> MaximumTable::add(const float* from, Index count, float* to) {
  if (count < 0) return fail(Code::invalid_argument, fmt::format("a maximum of {} floats", count));
  if (count >= kMaxElements)
    return fail(Code::unsupported,
                fmt::format("a GPU finds maxima of fewer than 2^31 floats, not {}", count));
  if (!is_multiple(from, 0, 4) || !is_multiple(to, 0, 4))
    return fail(Code::unsupported, "a GPU finds maxima of floats that are aligned to their size");
  maxima_.push_back({from, to, narrow(count)});
  return {};
}

void MaximumTable::end_level() {
  levels_.push_back({levels_.empty() ? 0 : levels_.back().end, narrow(std::ssize(maxima_))});
}

}  // namespace reshard::cuda
