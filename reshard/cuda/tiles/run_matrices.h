// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels of quantised matrices, as phases: all threads of a block end one before
// any begins the next. Host compilers make of them functions for blocks whose threads run in turn,
// which is how they are tested without a GPU.
#pragma once

#include "reshard/cuda/tiles/matrix_tiles.h"
#include "reshard/cuda/tiles/run_tiles.h"
#include "reshard/cuda/tiles/vector_codes.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard::cuda {

/// *at becomes the larger one. Threads of a block may call it at once.
RESHARD_HOST_DEVICE inline void raise_to(std::uint32_t* at, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  atomicMax(at, value);
#else
  if (value > *at) *at = value;
#endif
}

/// The same with one access a warp. All threads of the block call it, each with its value.
RESHARD_HOST_DEVICE inline void raise_together(std::uint32_t* at, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  for (int lanes = 16; lanes > 0; lanes /= 2)
    value = max(value, __shfl_xor_sync(0xffffffffU, value, lanes));
  if (threadIdx.x % 32 != 0) return;
#endif
  raise_to(at, value);
}

/// A tile of a matrix, in elements and in the steps that threads take.
struct TileSteps {
  std::uint32_t first_col, cols, blocks, per_row, num;

  RESHARD_HOST_DEVICE TileSteps(const MatrixPair& m, const MatrixTile& t) {
    first_col = t.first_block * m.block_cols;
    blocks = t.end_block - t.first_block;
    const std::uint32_t end_col = t.end_block == m.scale_cols ? m.cols : t.end_block * m.block_cols;
    cols = end_col - first_col;
    per_row = (cols + m.at_once - 1) / m.at_once;
    num = per_row * (t.end_row - t.first_row);
  }
};

/// The elements of one step: `count` in row `row` from column `col`, all of one block.
struct Step {
  std::uint32_t row, col, count, slot;

  RESHARD_HOST_DEVICE Step(const MatrixPair& m, const MatrixTile& t, const TileSteps& tile,
                           std::uint32_t i) {
    const std::uint32_t down = i / tile.per_row, across = (i - down * tile.per_row) * m.at_once;
    row = t.first_row + down;
    col = tile.first_col + across;
    count = tile.cols - across < m.at_once ? tile.cols - across : m.at_once;
    slot = m.one_block ? 0 : down / m.block_rows * tile.blocks + across / m.block_cols;
  }
};

RESHARD_HOST_DEVICE inline std::uint32_t num_slots(const MatrixPair& m, const MatrixTile& t) {
  if (t.first_row == t.end_row) return 0;
  if (m.one_block) return 1;
  return (t.end_row - t.first_row + m.block_rows - 1) / m.block_rows *
         (t.end_block - t.first_block);
}

/// The values of a step; zeros follow the last one.
RESHARD_HOST_DEVICE inline Eight load_values(const MatrixPair& m, const Step& step) {
  Eight out = {};
  const int width = width_of(m.dtype);
  const std::byte* const at = m.values + step.row * m.values_row + std::int64_t{step.col} * width;
  if (m.at_once < 8 || step.count < 8) {
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < 8; ++k)
      if (k < step.count) out.of[k] = load_value(m.dtype, at + static_cast<int>(k) * width);
  } else {
    with_dtype(m.dtype, [&](auto dtype) { out = Stored<dtype.value>::load(at).values(); });
  }
  return out;
}

RESHARD_HOST_DEVICE inline std::uint32_t magnitude(const Eight& values) {
  std::uint32_t most = 0;
  RESHARD_UNROLL
  for (int k = 0; k < 8; ++k) {
    const std::uint32_t bits = float_bits(values.of[k]) & kFloatMagnitude;
    most = bits > most ? bits : most;
  }
  return most;
}

/// The places of a matrix' scales. Holds what it needs of the matrix, which stores would make a
/// thread read again.
class ScalePlaces {
 public:
  RESHARD_HOST_DEVICE explicit ScalePlaces(const MatrixPair& m)
      : scales_(m.scales),
        row_(m.scales_row),
        cols_(m.scale_cols),
        width_(m.scale_width),
        swizzled_(m.swizzled) {}
  /// The address of the scale of block (row, col).
  RESHARD_HOST_DEVICE std::byte* at(std::uint32_t row, std::uint32_t col) const {
    if (!swizzled_) return scales_ + row * row_ + std::int64_t{col} * width_;
    // swizzled_scale_offset(), by shifts.
    const std::uint32_t r = row % 128;
    const std::uint64_t tile = std::uint64_t{row / 128} * ((cols_ + 3) / 4) + col / 4;
    return scales_ + tile * 512 + (r % 32 * 16 + r / 32 * 4 + col % 4);
  }

 private:
  std::byte* scales_;
  std::int64_t row_;
  std::uint32_t cols_, width_;
  bool swizzled_;
};

RESHARD_HOST_DEVICE inline std::byte* scale_at(const MatrixPair& m, std::uint32_t row,
                                               std::uint32_t col) {
  return ScalePlaces(m).at(row, col);
}

/// A maximum, phase 1.
RESHARD_HOST_DEVICE inline void clear_maximum(std::uint32_t& most, const TileThread& me) {
  if (me.thread == 0) most = 0;
}

/// Phase 2: the bits of the largest magnitude of a tile.
RESHARD_HOST_DEVICE inline void tile_amax_phase(const MatrixPair& m, const MatrixTile& t,
                                                std::uint32_t& most, const TileThread& me) {
  const TileSteps tile(m, t);
  std::uint32_t mine = 0;
  for (std::uint32_t i = me.thread; i < tile.num; i += me.num_threads) {
    const Step step(m, t, tile, i);
    const std::uint32_t found = magnitude(load_values(m, step));
    if (found > mine) mine = found;
  }
  raise_together(&most, mine);
}

/// Phase 2: the bits of the largest float that is not negative; NaN is larger than any other.
RESHARD_HOST_DEVICE inline void maximum_phase(const Maximum& maximum, std::uint32_t& most,
                                              const TileThread& me) {
  std::uint32_t mine = 0;
  for (std::uint32_t i = me.thread; i < maximum.count; i += me.num_threads) {
    const std::uint32_t bits = float_bits(maximum.from[i]);
    const std::uint32_t found = is_nan_bits(bits) ? bits & kFloatMagnitude : bits;
    if (found >> 31 == 0 && found > mine) mine = found;
  }
  raise_together(&most, mine);
}

/// Phase 3.
RESHARD_HOST_DEVICE inline void write_maximum(float* to, const std::uint32_t& most,
                                              const TileThread& me) {
  if (me.thread == 0) *to = bits_float(most);
}

RESHARD_HOST_DEVICE inline float amax_of(const MatrixPair& m) {
  return m.needs_amax ? *m.amax : 0.0F;
}

/// Quantising, phase 1: zeros for the maxima of blocks, and the matrix' amax, which may be in host
/// memory, read once.
RESHARD_HOST_DEVICE inline void clear_phase(const MatrixPair& m, const MatrixTile& t,
                                            MatrixShared& shared, const TileThread& me) {
  for (std::uint32_t s = me.thread; s < num_slots(m, t); s += me.num_threads) shared.amax[s] = 0;
  if (me.thread == 0) shared.matrix_amax = amax_of(m);
}

/// Phase 2: the largest magnitude of each block.
RESHARD_HOST_DEVICE inline void block_amax_phase(const MatrixPair& m, const MatrixTile& t,
                                                 MatrixShared& shared, const TileThread& me) {
  const std::uint32_t slots = num_slots(m, t);
  if (m.one_block) {
    if (me.thread == 0) shared.amax[0] = float_bits(shared.matrix_amax) & kFloatMagnitude;
    return;
  }
  const TileSteps tile(m, t);
  std::uint32_t slot = 0, most = 0;  // Of the steps since the last one of another block.
  for (std::uint32_t i = me.thread; i < tile.num; i += me.num_threads) {
    const Step step(m, t, tile, i);
    const std::uint32_t found = magnitude(load_values(m, step));
    if (step.slot != slot) {
      if (most > 0) raise_to(&shared.amax[slot], most);
      slot = step.slot;
      most = 0;
    }
    if (found > most) most = found;
  }
  if (slots == 1) return raise_together(&shared.amax[0], most);
  if (most > 0) raise_to(&shared.amax[slot], most);
}

/// Zeros for the padding of swizzled scales beside and below the tile.
RESHARD_CALLED inline void write_padding(const MatrixPair& m, const MatrixTile& t, TileThread me) {
  const bool is_right = t.end_block == m.scale_cols, is_low = t.end_row == m.rows;
  const auto end_col =
      is_right ? static_cast<std::uint32_t>(scale_tile_cols(m.scale_cols)) : t.end_block;
  const auto end_row = is_low ? m.padded_rows : t.end_row;
  if (end_col == t.end_block && end_row == t.end_row) return;
  const std::uint32_t cols = end_col - t.first_block;
  for (std::uint32_t i = me.thread; i < cols * (end_row - t.first_row); i += me.num_threads) {
    const std::uint32_t row = t.first_row + i / cols, col = t.first_block + i % cols;
    if (row >= m.rows || col >= m.scale_cols) *scale_at(m, row, col) = std::byte{0};
  }
}

/// `width`: bytes.
RESHARD_HOST_DEVICE inline void store_scale(std::uint8_t width, std::uint32_t stored,
                                            std::byte* at) {
  if (width == 4) {
    *reinterpret_cast<std::uint32_t*>(at) = stored;
  } else if (width == 2) {
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(stored);
  } else {
    *at = static_cast<std::byte>(stored);
  }
}

/// True for the tile whose thread block writes what the matrix has one of.
RESHARD_HOST_DEVICE inline bool is_first_tile(const MatrixPair& m, const MatrixTile& t) {
  return m.is_first && t.first_row == 0 && t.first_block == 0;
}

/// The maker of the scales of a matrix with this amax. The first thread writes the matrix' factor.
RESHARD_HOST_DEVICE inline ScaleMaker make_scales(const MatrixPair& m, const MatrixTile& t,
                                                  float matrix_amax, std::uint32_t thread) {
  const ScaleMaker maker =
      scale_maker(m.scale, m.codes, m.zero_block, m.has_factor, m.factor_divides, matrix_amax);
  if (m.has_factor && is_first_tile(m, t) && thread == 0)
    *m.factor = m.factor_divides ? maker.inverse_factor : maker.factor;
  return maker;
}

/// Phase 3: scales, and the factor of the matrix.
RESHARD_HOST_DEVICE inline void scale_phase(const MatrixPair& m, const MatrixTile& t,
                                            MatrixShared& shared, const TileThread& me) {
  const ScaleMaker maker = make_scales(m, t, shared.matrix_amax, me.thread);
  const std::uint32_t blocks = t.end_block - t.first_block;
  for (std::uint32_t s = me.thread; s < num_slots(m, t); s += me.num_threads) {
    const BlockScale scale = block_scale(maker, shared.amax[s]);
    shared.by[s] = scale.by;
    if (m.one_block && !is_first_tile(m, t)) continue;
    store_scale(m.scale_width, scale.stored,
                m.one_block ? m.scales
                            : scale_at(m, t.first_row / m.block_rows + s / blocks,
                                       t.first_block + s % blocks));
  }
  if (m.swizzled) write_padding(m, t, me);
}

/// The rounding of quotients of values of a dtype.
RESHARD_HOST_DEVICE constexpr Rounding rounding_of(DType dtype) {
  return dtype == DType::bf16  ? Rounding::bf16
         : dtype == DType::f16 ? Rounding::f16
                               : Rounding::f32;
}

/// The codes of values of one block.
template <CodeKind C>
RESHARD_INLINE std::uint64_t encoded_eight(const Eight& values, bool is_divided, float by,
                                           Rounding rounding) {
  if (!is_integer(C) && is_nan_bits(float_bits(by))) {
    constexpr std::uint64_t kEach = code_bits(C) == 8 ? 0x0101010101010101U : 0x11111111U;
    return traits(C).nan_code * kEach;
  }
  Eight quotients;
  if (is_integer(C) || is_divided) {
    quotients = divided_eight(values, by);
  } else {
    RESHARD_UNROLL
    for (int k = 0; k < 8; ++k) quotients.of[k] = values.of[k] * by;
  }
  return codes_of<C>(quotients, rounding);
}
/// The same of any kind.
RESHARD_CALLED inline std::uint64_t encoded_as(CodeKind kind, Eight values, bool is_divided,
                                               float by, Rounding rounding) {
  std::uint64_t codes = 0;
  for (int k = 0; k < 8; ++k)
    codes |= std::uint64_t{encoded(kind, is_divided, values.of[k], by, rounding)}
             << (k * code_bits(kind));
  return codes;
}

/// Phase 4: casts the values and writes their codes.
RESHARD_HOST_DEVICE inline void encode_phase(const MatrixPair& m, const MatrixTile& t,
                                             const MatrixShared& shared, const TileThread& me) {
  const TileSteps tile(m, t);
  const bool is_divided = divides(m.scale);
  const auto width = static_cast<std::uint32_t>(code_bits(m.codes));
  for (std::uint32_t i = me.thread; i < tile.num; i += me.num_threads) {
    const Step step(m, t, tile, i);
    const std::uint64_t codes = encoded_as(m.codes, load_values(m, step), is_divided,
                                           shared.by[step.slot], rounding_of(m.dtype));
    std::byte* const to = m.data + step.row * m.data_row + std::int64_t{step.col} * width / 8;
    if (m.at_once == 8 && step.count == 8) {
      store_codes(codes, code_bits(m.codes), to);
    } else {
      for (std::uint32_t b = 0; b < (step.count * width + 7) / 8; ++b)
        to[b] = static_cast<std::byte>(codes >> (8 * b));
    }
  }
}

/// Bytes of a scale.
RESHARD_HOST_DEVICE constexpr std::uint8_t scale_width_of(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::e8m0_up:
    case ScaleKind::e8m0_floor:
    case ScaleKind::e4m3: return 1;
    case ScaleKind::bf16_exact:
    case ScaleKind::f16_exact: return 2;
    default: return 4;
  }
}

/// The multipliers of the codes of blocks: what is stored of them, and the matrix' factor.
class DecodingScales {
 public:
  /// `kind`: m.scale, or the same known when this is compiled.
  RESHARD_HOST_DEVICE DecodingScales(const MatrixPair& m, ScaleKind kind)
      : rows_(m.rows_of_block),
        cols_(m.cols_of_block),
        factor_(m.has_factor ? *m.factor : 1.0F),
        kind_(kind),
        one_block_(m.one_block),
        has_factor_(m.has_factor),
        divides_(m.factor_divides) {}
  /// The row and column of blocks of an element.
  RESHARD_HOST_DEVICE std::uint32_t row(std::uint32_t of) const {
    return one_block_ ? 0 : quotient(of, rows_);
  }
  RESHARD_HOST_DEVICE std::uint32_t col(std::uint32_t of) const { return quotient(of, cols_); }

  RESHARD_HOST_DEVICE std::uint32_t load(const std::byte* at) const {
    at = in_global_memory(at);
    const std::uint8_t width = scale_width_of(kind_);
    if (width == 4) return *reinterpret_cast<const std::uint32_t*>(at);
    if (width == 2) return *reinterpret_cast<const std::uint16_t*>(at);
    return static_cast<std::uint32_t>(*at);
  }
  RESHARD_HOST_DEVICE float value(std::uint32_t stored) const {
    const bool is_number = kind_ == ScaleKind::e4m3 && (stored & 0x7fU) != 0x7fU;
    const float scale = is_number ? e4m3_number(stored) : scale_to_float(kind_, stored);
    if (!has_factor_) return scale;
    return divides_ ? scale / factor_ : scale * factor_;
  }

 private:
  Divisor rows_, cols_;
  float factor_;
  ScaleKind kind_;
  bool one_block_, has_factor_, divides_;
};

/// Dequantising is one phase, value by value.
RESHARD_HOST_DEVICE inline void decode_step(const MatrixPair& m, const Step& step, float scale) {
  const auto width = static_cast<std::uint32_t>(code_bits(m.codes));
  const std::byte* const from = m.data + step.row * m.data_row + std::int64_t{step.col} * width / 8;
  std::byte* const to =
      m.values + step.row * m.values_row + std::int64_t{step.col} * width_of(m.dtype);
  for (std::uint32_t k = 0; k < step.count; ++k) {
    const auto byte = static_cast<std::uint32_t>(from[k * width / 8]);
    const std::uint32_t code = width == 8 ? byte : byte >> (k % 2 * 4) & 0xfU;
    store_value(m.dtype, decoded(m.codes, code, scale),
                to + static_cast<int>(k) * width_of(m.dtype));
  }
}

RESHARD_HOST_DEVICE inline void decode_phase(const MatrixPair& m, const MatrixTile& t,
                                             const TileThread& me) {
  const TileSteps tile(m, t);
  const DecodingScales scales(m, m.scale);
  for (std::uint32_t i = me.thread; i < tile.num; i += me.num_threads) {
    const Step step(m, t, tile, i);
    const std::byte* const at = scale_at(m, scales.row(step.row), scales.col(step.col));
    decode_step(m, step, scales.value(scales.load(at)));
  }
}

/// Calls f(matrix, tile, the tile's number) for each tile of a thread block.
template <class F>
RESHARD_HOST_DEVICE void for_each_tile(const MatrixLaunch& launch, const TileThread& me, F&& f) {
  for (std::uint32_t i = launch.first_tile + me.block; i < launch.end_tile; i += me.num_blocks) {
    const MatrixTile& tile = launch.tiles[i];
    f(launch.matrices[tile.matrix], tile, i);
  }
}

/// Calls f(maximum) for each one of a thread block.
template <class F>
RESHARD_HOST_DEVICE void for_each_maximum(const MaximumLaunch& launch, const TileThread& me,
                                          F&& f) {
  for (std::uint32_t i = launch.first + me.block; i < launch.end; i += me.num_blocks)
    f(launch.maxima[i]);
}

}  // namespace reshard::cuda
