// SPDX-License-Identifier: Apache-2.0
// The ways to quantise and dequantise whole vectors of values: MatrixWay::vectors and held. As
// run_matrices.h, which has the way for all other matrices.
#pragma once

#include "reshard/cuda/tiles/run_matrices.h"

namespace reshard::cuda {

/// Divides numbers below 2^16 by one up to 2^16, which need not be known before; by 0 as by 1.
class SmallDivisor {
 public:
  RESHARD_HOST_DEVICE explicit SmallDivisor(std::uint32_t by)
      : multiplier_(by > 1 ? 0xffffffffU / by + 1 : 0) {}  // 2^32 / by, rounded up.
  RESHARD_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    return multiplier_ == 0 ? n : static_cast<std::uint32_t>(std::uint64_t{n} * multiplier_ >> 32);
  }

 private:
  std::uint32_t multiplier_;
};

/// The vectors of `Size` values of a tile whose rows have whole ones: fewer than 2^16, in rows less
/// than 2^31 bytes apart. Holds what it needs of the matrix, as ScalePlaces.
template <std::uint32_t Size>
class TileVectors {
 public:
  RESHARD_HOST_DEVICE TileVectors(const MatrixPair& m, const MatrixTile& t)
      : values_(m.values),
        data_(m.data),
        values_row_(static_cast<std::uint32_t>(m.values_row)),
        data_row_(static_cast<std::uint32_t>(m.data_row)),
        first_row_(t.first_row),
        first_col_(t.first_block * m.block_cols),
        per_row_(TileSteps(m, t).cols / Size),
        num_(per_row_ * (t.end_row - t.first_row)),
        by_row_(per_row_) {}
  RESHARD_HOST_DEVICE std::uint32_t num() const { return num_; }

  /// Vector `i`: its row, and its number in the tile's part of the row.
  struct Place {
    std::uint32_t row, across;
  };
  RESHARD_HOST_DEVICE Place place(std::uint32_t i) const {
    const std::uint32_t down = by_row_.quotient(i);
    return {first_row_ + down, i - down * per_row_};
  }
  RESHARD_HOST_DEVICE std::uint32_t col(const Place& at) const {
    return first_col_ + Size * at.across;
  }
  template <DType D>
  RESHARD_HOST_DEVICE std::byte* values(const Place& at) const {
    return in_global_memory(values_ + std::uint64_t{at.row} * values_row_ +
                            std::uint64_t{col(at)} * static_cast<std::uint32_t>(width_of(D)));
  }
  template <CodeKind C>
  RESHARD_HOST_DEVICE std::byte* codes(const Place& at) const {
    return in_global_memory(data_ + std::uint64_t{at.row} * data_row_ +
                            col(at) / 8 * static_cast<std::uint32_t>(code_bits(C)));
  }

 private:
  std::byte *values_, *data_;
  std::uint32_t values_row_, data_row_, first_row_, first_col_, per_row_, num_;
  SmallDivisor by_row_;
};

/// Sixteen values as they are stored.
template <DType D>
struct Sixteen {
  Stored<D> first, second;

  RESHARD_HOST_DEVICE static Sixteen load(const std::byte* at) {
    return {Stored<D>::load(at), Stored<D>::load(at + 8 * width_of(D))};
  }
  RESHARD_HOST_DEVICE static constexpr Sixteen zeros() {
    return {Stored<D>::zeros(), Stored<D>::zeros()};
  }
  RESHARD_HOST_DEVICE std::uint32_t magnitude() const {
    const std::uint32_t a = first.magnitude(), b = second.magnitude();
    return a > b ? a : b;
  }
};

/// The largest magnitude of a group of `lanes` threads, each with sixteen values of a block. All
/// threads of a warp call it. A host compiler has no other threads: it reads the others' values.
template <DType D>
RESHARD_HOST_DEVICE std::uint32_t group_magnitude(const TileVectors<16>& tile,
                                                  const TileVectors<16>::Place& at,
                                                  std::uint32_t lanes, std::uint32_t mine) {
#if defined(__CUDA_ARCH__)
  for (std::uint32_t apart = 1; apart < lanes; apart *= 2)
    mine = max(mine, __shfl_xor_sync(0xffffffffU, mine, static_cast<int>(apart)));
  return mine;
#else
  const std::uint32_t first = at.across / lanes * lanes;
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const std::byte* const other = tile.values<D>({at.row, first + lane});
    const std::uint32_t found = Sixteen<D>::load(other).magnitude();
    mine = found > mine ? found : mine;
  }
  return mine;
#endif
}

/// The scales of a matrix' blocks of sixteen values and more, each of which a group of threads
/// shares.
template <DType D, CodeKind C, ScaleKind S>
class GroupScales {
 public:
  RESHARD_HOST_DEVICE GroupScales(const MatrixPair& m, const MatrixTile& t, const TileThread& me)
      : places_(m),
        scales_(make_scales(m, t, amax_of(m), me.thread)),
        lanes_(m.one_block ? 1 : m.block_cols / 16),
        first_block_(t.first_block),
        one_block_(m.one_block) {
    while (1U << log2_lanes_ < lanes_) ++log2_lanes_;
    if (!one_block_) return;
    whole_ = scales_.of(float_bits(amax_of(m)) & kFloatMagnitude);
    if (is_first_tile(m, t) && me.thread == 0)
      store_scale(scale_width_of(S), whole_.stored, m.scales);
  }

  /// BlockScale::by of the block of these values. All threads of a warp call it; the first of a
  /// group stores its scale if `is_mine`.
  RESHARD_INLINE float by(const TileVectors<16>& tile, const TileVectors<16>::Place& at,
                          const Sixteen<D>& values, bool is_mine) const {
    if (one_block_) return whole_.by;
    const BlockScale scale = scales_.of(group_magnitude<D>(tile, at, lanes_, values.magnitude()));
    if (is_mine && (at.across & (lanes_ - 1)) == 0)
      store_scale(scale_width_of(S), scale.stored,
                  places_.at(at.row, first_block_ + (at.across >> log2_lanes_)));
    return scale.by;
  }

 private:
  ScalePlaces places_;
  BlockScales<C, S> scales_;
  BlockScale whole_ = {};
  std::uint32_t lanes_, log2_lanes_ = 0, first_block_;
  bool one_block_;
};

/// MatrixWay::vectors, in one phase.
template <DType D, CodeKind C, ScaleKind S>
RESHARD_HOST_DEVICE void quantise_vectors(const MatrixPair& m, const MatrixTile& t,
                                          const TileThread& me) {
  constexpr std::uint32_t kAtOnce = D == DType::f32 ? 1 : 2;
  const TileVectors<16> tile(m, t);
  const GroupScales<D, C, S> scales(m, t, me);
  // All threads take part in each round: they exchange what they find.
  for (std::uint32_t first = me.thread; first - me.thread < tile.num();
       first += kAtOnce * me.num_threads) {
    Sixteen<D> held[kAtOnce];
    TileVectors<16>::Place at[kAtOnce];
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t i = first + k * me.num_threads;
      at[k] = tile.place(i < tile.num() ? i : 0);
      held[k] = i < tile.num() ? Sixteen<D>::load(tile.values<D>(at[k])) : Sixteen<D>::zeros();
    }
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const bool is_mine = first + k * me.num_threads < tile.num();
      const float by = scales.by(tile, at[k], held[k], is_mine);
      const auto encoded = [&](const Stored<D>& values) {
        return encoded_eight<C>(values.values(), divides(S), by, rounding_of(D));
      };
      if (is_mine)
        store_sixteen<C>({encoded(held[k].first), encoded(held[k].second)}, tile.codes<C>(at[k]));
    }
  }
  if (m.swizzled) write_padding(m, t, me);
}

/// The values that a thread of MatrixWay::held holds between its phases. `N`: vectors.
template <DType D, int N>
struct Held {
  Stored<D> of[static_cast<std::size_t>(N)];
};

/// MatrixWay::held, phase 1: the tile's maximum is 0.
RESHARD_HOST_DEVICE inline void clear_held_phase(MatrixShared& shared, const TileThread& me) {
  clear_maximum(shared.amax[0], me);
}

/// Phase 2: holds the tile's values and finds the largest magnitude.
template <DType D, int N>
RESHARD_INLINE void hold_phase(const MatrixPair& m, const MatrixTile& t, MatrixShared& shared,
                               Held<D, N>& held, const TileThread& me) {
  const TileVectors<8> tile(m, t);
  RESHARD_UNROLL
  for (int k = 0; k < N; ++k) {
    const std::uint32_t i = me.thread + static_cast<std::uint32_t>(k) * me.num_threads;
    held.of[k] =
        i < tile.num() ? Stored<D>::load(tile.values<D>(tile.place(i))) : Stored<D>::zeros();
  }
  std::uint32_t most = 0;
  RESHARD_UNROLL
  for (int k = 0; k < N; ++k) {
    const std::uint32_t found = held.of[k].magnitude();
    most = found > most ? found : most;
  }
  raise_together(&shared.amax[0], most);
}

/// Phase 3: the block's scale, and the codes.
template <DType D, CodeKind C, ScaleKind S, int N>
RESHARD_INLINE void encode_held_phase(const MatrixPair& m, const MatrixTile& t,
                                      const MatrixShared& shared, const Held<D, N>& held,
                                      const TileThread& me) {
  const TileVectors<8> tile(m, t);
  const BlockScales<C, S> scales(make_scales(m, t, amax_of(m), me.thread));
  const BlockScale scale = scales.of(shared.amax[0]);
  if (me.thread == 0)
    store_scale(scale_width_of(S), scale.stored,
                scale_at(m, t.first_row / m.block_rows, t.first_block));
  RESHARD_UNROLL
  for (int k = 0; k < N; ++k) {
    const std::uint32_t i = me.thread + static_cast<std::uint32_t>(k) * me.num_threads;
    if (i >= tile.num()) return;
    store_codes(encoded_eight<C>(held.of[k].values(), divides(S), scale.by, rounding_of(D)),
                code_bits(C), tile.codes<C>(tile.place(i)));
  }
}

/// Eight codes at a multiple of their size.
template <CodeKind C>
RESHARD_HOST_DEVICE std::uint64_t load_codes(const std::byte* at) {
  return code_bits(C) == 8 ? *reinterpret_cast<const std::uint64_t*>(at)
                           : *reinterpret_cast<const std::uint32_t*>(at);
}

/// MatrixWay::vectors, to dequantise.
template <DType D, CodeKind C, ScaleKind S>
RESHARD_HOST_DEVICE void decode_vectors(const MatrixPair& m, const MatrixTile& t,
                                        const TileThread& me) {
  // A thread stores eight values: those of a warp are then adjacent in each access.
  constexpr std::uint32_t kAtOnce = 4;
  const TileVectors<8> tile(m, t);
  const ScalePlaces places(m);
  const DecodingScales scales(m, S);
  for (std::uint32_t first = me.thread; first < tile.num(); first += kAtOnce * me.num_threads) {
    std::uint64_t codes[kAtOnce] = {};
    std::uint32_t stored[kAtOnce] = {};
    TileVectors<8>::Place at[kAtOnce];
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t i = first + k * me.num_threads;
      at[k] = tile.place(i < tile.num() ? i : 0);
      if (i >= tile.num()) continue;
      codes[k] = load_codes<C>(tile.codes<C>(at[k]));
      stored[k] = scales.load(places.at(scales.row(at[k].row), scales.col(tile.col(at[k]))));
    }
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      if (first + k * me.num_threads >= tile.num()) continue;
      const float scale = scales.value(stored[k]);
      std::byte* const to = tile.values<D>(at[k]);
      if (are_finite<C>(codes[k], scale))
        store_numbers<D>(decoded_eight<C>(codes[k], scale), to);
      else
        store_decoded<D, C>(codes[k], scale, to);
    }
  }
}

/// tile_amax_phase() of whole vectors, several in flight.
template <DType D>
RESHARD_INLINE void vectors_amax_phase(const MatrixPair& m, const MatrixTile& t,
                                       std::uint32_t& most, const TileThread& me) {
  constexpr std::uint32_t kAtOnce = 4;
  const TileVectors<8> tile(m, t);
  std::uint32_t mine = 0;
  for (std::uint32_t first = me.thread; first < tile.num(); first += kAtOnce * me.num_threads) {
    Stored<D> held[kAtOnce];
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t i = first + k * me.num_threads;
      held[k] =
          i < tile.num() ? Stored<D>::load(tile.values<D>(tile.place(i))) : Stored<D>::zeros();
    }
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t found = held[k].magnitude();
      mine = found > mine ? found : mine;
    }
  }
  raise_together(&most, mine);
}

/// Phase 2 of the maximum of a tile.
RESHARD_HOST_DEVICE inline void any_amax_phase(const MatrixPair& m, const MatrixTile& t,
                                               std::uint32_t& most, const TileThread& me) {
  if (m.way == MatrixWay::phases) return tile_amax_phase(m, t, most, me);
  with_dtype(m.dtype, [&](auto dtype) { vectors_amax_phase<dtype.value>(m, t, most, me); });
}

}  // namespace reshard::cuda
