// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels of quantised matrices, as phases: all threads of a block end one before
// any begins the next. Host compilers make of them functions for blocks whose threads run in turn,
// which is how they are tested without a GPU.
#pragma once

#include "reshard/cuda/tiles/matrix_tiles.h"
#include "reshard/cuda/tiles/run_tiles.h"
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

/// Up to eight values.
struct Values {
  float of[8];
};

RESHARD_HOST_DEVICE inline Values load_values(const MatrixPair& m, const Step& step) {
  Values out = {};
  const int width = width_of(m.dtype);
  const std::byte* const at = m.values + step.row * m.values_row + std::int64_t{step.col} * width;
  if (m.at_once < 8 || step.count < 8) {
    for (std::uint32_t k = 0; k < 8; ++k)
      if (k < step.count) out.of[k] = load_value(m.dtype, at + static_cast<int>(k) * width);
    return out;
  }
  // No array is indexed by what is known at run time only, so that all of it stays in registers.
  const Vector16 first = *reinterpret_cast<const Vector16*>(at);
  if (m.dtype == DType::f32) {
    const Vector16 second = reinterpret_cast<const Vector16*>(at)[1];
    const std::uint64_t words[4] = {first.low, first.high, second.low, second.high};
    for (int k = 0; k < 8; ++k)
      out.of[k] = bits_float(static_cast<std::uint32_t>(words[k / 2] >> (k % 2 * 32)));
    return out;
  }
  for (int k = 0; k < 8; ++k) {
    const auto half = static_cast<std::uint16_t>((k < 4 ? first.low : first.high) >> (k % 4 * 16));
    out.of[k] = m.dtype == DType::bf16 ? from_bf16(half) : from_f16(half);
  }
  return out;
}

RESHARD_HOST_DEVICE inline std::uint32_t magnitude(const Values& values, std::uint32_t count) {
  std::uint32_t most = 0;
  for (std::uint32_t k = 0; k < 8; ++k) {
    const std::uint32_t bits = float_bits(values.of[k]) & kFloatMagnitude;
    if (k < count && bits > most) most = bits;
  }
  return most;
}

/// The place of the scale of block (row, col).
RESHARD_HOST_DEVICE inline std::byte* scale_at(const MatrixPair& m, std::uint32_t row,
                                               std::uint32_t col) {
  if (m.swizzled) return m.scales + swizzled_scale_offset(row, col, m.scale_cols);
  return m.scales + row * m.scales_row + std::int64_t{col} * m.scale_width;
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
    const std::uint32_t found = magnitude(load_values(m, step), step.count);
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

/// Quantising, phase 1: zeros for the maxima of blocks, and the matrix' amax, which may be in host
/// memory, read once.
RESHARD_HOST_DEVICE inline void clear_phase(const MatrixPair& m, const MatrixTile& t,
                                            MatrixShared& shared, const TileThread& me) {
  for (std::uint32_t s = me.thread; s < num_slots(m, t); s += me.num_threads) shared.amax[s] = 0;
  if (me.thread == 0) shared.matrix_amax = m.needs_amax ? *m.amax : 0.0F;
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
    const std::uint32_t found = magnitude(load_values(m, step), step.count);
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
RESHARD_HOST_DEVICE inline void write_padding(const MatrixPair& m, const MatrixTile& t,
                                              const TileThread& me) {
  const bool is_right = t.end_block == m.scale_cols, is_low = t.end_row == m.rows;
  const auto end_col =
      is_right ? static_cast<std::uint32_t>(scale_tile_cols(m.scale_cols)) : t.end_block;
  const auto end_row = is_low ? m.padded_rows : t.end_row;
  const std::uint32_t cols = end_col - t.first_block;
  for (std::uint32_t i = me.thread; i < cols * (end_row - t.first_row); i += me.num_threads) {
    const std::uint32_t row = t.first_row + i / cols, col = t.first_block + i % cols;
    if (row >= m.rows || col >= m.scale_cols) *scale_at(m, row, col) = std::byte{0};
  }
}

/// Phase 3: scales, and the factor of the matrix.
RESHARD_HOST_DEVICE inline void scale_phase(const MatrixPair& m, const MatrixTile& t,
                                            MatrixShared& shared, const TileThread& me) {
  const ScaleMaker maker = scale_maker(m.scale, m.codes, m.zero_block, m.has_factor,
                                       m.factor_divides, shared.matrix_amax);
  const bool is_first = m.is_first && t.first_row == 0 && t.first_block == 0;
  if (m.has_factor && is_first && me.thread == 0)
    *m.factor = m.factor_divides ? maker.inverse_factor : maker.factor;
  const std::uint32_t blocks = t.end_block - t.first_block;
  for (std::uint32_t s = me.thread; s < num_slots(m, t); s += me.num_threads) {
    const BlockScale scale = block_scale(maker, shared.amax[s]);
    shared.by[s] = scale.by;
    if (m.one_block && !is_first) continue;
    std::byte* const at = m.one_block ? m.scales
                                      : scale_at(m, t.first_row / m.block_rows + s / blocks,
                                                 t.first_block + s % blocks);
    if (m.scale_width == 4) {
      *reinterpret_cast<std::uint32_t*>(at) = scale.stored;
    } else if (m.scale_width == 2) {
      *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(scale.stored);
    } else {
      *at = static_cast<std::byte>(scale.stored);
    }
  }
  if (m.swizzled) write_padding(m, t, me);
}

/// Where quotients of values of a dtype are rounded.
RESHARD_HOST_DEVICE constexpr Rounding rounding_of(DType dtype) {
  return dtype == DType::bf16  ? Rounding::bf16
         : dtype == DType::f16 ? Rounding::f16
                               : Rounding::f32;
}

/// Phase 4: casts the values and writes their codes.
RESHARD_HOST_DEVICE inline void encode_phase(const MatrixPair& m, const MatrixTile& t,
                                             const MatrixShared& shared, const TileThread& me) {
  const TileSteps tile(m, t);
  const bool is_divided = divides(m.scale);
  const Rounding rounding = rounding_of(m.dtype);
  const auto width = static_cast<std::uint32_t>(code_bits(m.codes));  // bits of a code.
  for (std::uint32_t i = me.thread; i < tile.num; i += me.num_threads) {
    const Step step(m, t, tile, i);
    const Values values = load_values(m, step);
    const float by = shared.by[step.slot];
    std::uint64_t codes = 0;
    for (std::uint32_t k = 0; k < 8; ++k)
      if (k < step.count)
        codes |= std::uint64_t{encoded(m.codes, is_divided, values.of[k], by, rounding)}
                 << (k * width);
    std::byte* const to = m.data + step.row * m.data_row + std::int64_t{step.col} * width / 8;
    if (m.at_once == 8 && step.count == 8) {
      if (width == 8) {
        *reinterpret_cast<std::uint64_t*>(to) = codes;
      } else {
        *reinterpret_cast<std::uint32_t*>(to) = static_cast<std::uint32_t>(codes);
      }
    } else {
      for (std::uint32_t b = 0; b < (step.count * width + 7) / 8; ++b)
        to[b] = static_cast<std::byte>(codes >> (8 * b));
    }
  }
}

/// The multiplier of the codes of a block.
RESHARD_HOST_DEVICE inline float decoding_scale(const MatrixPair& m, std::uint32_t row,
                                                std::uint32_t col) {
  const std::byte* const at = scale_at(m, m.one_block ? 0 : row / m.block_rows, col / m.block_cols);
  if (m.scale_width == 4) return bits_float(*reinterpret_cast<const std::uint32_t*>(at));
  if (m.scale_width == 2)
    return scale_to_float(m.scale, *reinterpret_cast<const std::uint16_t*>(at));
  const float scale = scale_to_float(m.scale, static_cast<std::uint32_t>(*at));
  if (!m.has_factor) return scale;
  return m.factor_divides ? scale / *m.factor : scale * *m.factor;
}

/// Dequantising is one phase.
RESHARD_HOST_DEVICE inline void decode_phase(const MatrixPair& m, const MatrixTile& t,
                                             const TileThread& me) {
  const TileSteps tile(m, t);
  const auto width = static_cast<std::uint32_t>(code_bits(m.codes));
  for (std::uint32_t i = me.thread; i < tile.num; i += me.num_threads) {
    const Step step(m, t, tile, i);
    const float scale = decoding_scale(m, step.row, step.col);
    const std::byte* const from =
        m.data + step.row * m.data_row + std::int64_t{step.col} * width / 8;
    std::byte* const to =
        m.values + step.row * m.values_row + std::int64_t{step.col} * width_of(m.dtype);
    for (std::uint32_t k = 0; k < step.count; ++k) {
      const auto byte = static_cast<std::uint32_t>(from[k * width / 8]);
      const std::uint32_t code = width == 8 ? byte : byte >> (k % 2 * 4) & 0xfU;
      store_value(m.dtype, decoded(m.codes, code, scale),
                  to + static_cast<int>(k) * width_of(m.dtype));
    }
  }
}

/// Calls f(matrix, tile, the tile's number) for each tile of a thread block.
template <class F>
RESHARD_HOST_DEVICE void for_each_tile(const MatrixLaunch& launch, const TileThread& me, F&& f) {
  for (std::uint32_t i = launch.first_tile + me.block; i < launch.end_tile; i += me.num_blocks) {
    const MatrixTile tile = launch.tiles[i];
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
