// SPDX-License-Identifier: Apache-2.0
// The body of the kernel of fingerprints, as phases: all threads of a block end one before any
// begins the next. Host compilers make of them functions for blocks whose threads run in turn,
// which is how they are tested without a GPU.
//
// The sum over a row's columns is multiplied by the row's weight, which costs as much as fifty
// bytes: so a block computes those of a slice's rows once, for all its threads. A thread then takes
// the same columns of several rows, so that it loads the weights of columns once for all of them.
#pragma once

#include "reshard/cuda/fingerprints/fingerprint_tiles.h"
#include "reshard/cuda/tiles/run_tiles.h"

namespace reshard::cuda {

/// Loads what is read only once: it leaves the weights in the cache.
template <class T>
RESHARD_HOST_DEVICE T load_once(const std::byte* at) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 16) {
    const ulonglong2 v = __ldcs(reinterpret_cast<const ulonglong2*>(at));
    return {v.x, v.y};
  } else if constexpr (sizeof(T) == 8) {
    return __ldcs(reinterpret_cast<const unsigned long long*>(at));
  } else {
    return __ldcs(reinterpret_cast<const T*>(at));
  }
#else
  return *reinterpret_cast<const T*>(at);
#endif
}

/// 32-bit word `w` of a vector.
RESHARD_HOST_DEVICE inline std::uint32_t word_of(std::uint32_t v, int) { return v; }
RESHARD_HOST_DEVICE inline std::uint32_t word_of(std::uint64_t v, int w) {
  return static_cast<std::uint32_t>(v >> (32 * w));
}

/// The bits of a value in a dtype.
RESHARD_HOST_DEVICE inline std::uint32_t bits_in(DType dtype, float value) {
  switch (dtype) {
    case DType::f32: return float_bits(value);
    case DType::bf16: return to_bf16(value);
    default: return to_f16(value);
  }
}
RESHARD_HOST_DEVICE inline std::uint32_t converted_bits(const Conversion& conversion, float value) {
  return bits_in(conversion.to.dtype, mapped_value(conversion, value));
}

/// The words that a thread reads of a row at once.
struct Words {
  std::uint32_t word[4] = {};
};

/// A vector as it is.
template <class Vector>
struct PlainRead {
  using Held = Vector;
  static constexpr int kWords = sizeof(Vector) < 4 ? 1 : static_cast<int>(sizeof(Vector) / 4);
  /// The bytes of one read: in memory, and in the form that is fingerprinted.
  RESHARD_HOST_DEVICE static std::uint32_t src_bytes(const FingerprintPiece&) {
    return sizeof(Vector);
  }
  RESHARD_HOST_DEVICE static std::uint32_t bytes(const FingerprintPiece&) { return sizeof(Vector); }
  RESHARD_HOST_DEVICE static Held load(const FingerprintPiece&, const std::byte* at) {
    return load_once<Vector>(at);
  }
  RESHARD_HOST_DEVICE static Words words(const FingerprintPiece&, const Held& held) {
    Words out;
    if constexpr (sizeof(Vector) < 4) {
      out.word[0] = held;
    } else {
      for (int w = 0; w < kWords; ++w) out.word[w] = word_of(held, w);
    }
    return out;
  }
};

/// One value, which is converted; or four, whose dtype changes.
template <int kValues>
struct ConvertedRead {
  using Held = Vector16;
  static constexpr int kWords = kValues;
  RESHARD_HOST_DEVICE static std::uint32_t src_bytes(const FingerprintPiece& piece) {
    return static_cast<std::uint32_t>(kValues * width_of(piece.conversion.from.dtype));
  }
  RESHARD_HOST_DEVICE static std::uint32_t bytes(const FingerprintPiece& piece) {
    return static_cast<std::uint32_t>(kValues * width_of(piece.conversion.to.dtype));
  }
  RESHARD_HOST_DEVICE static Held load(const FingerprintPiece& piece, const std::byte* at) {
    const bool wide = piece.conversion.from.dtype == DType::f32;
    if constexpr (kValues == 4) {
      return wide ? load_once<Vector16>(at) : Vector16{load_once<std::uint64_t>(at), 0};
    } else {
      return {wide ? load_once<std::uint32_t>(at) : load_once<std::uint16_t>(at), 0};
    }
  }
  RESHARD_HOST_DEVICE static Words words(const FingerprintPiece& piece, const Held& held) {
    const DType from = piece.conversion.from.dtype;
    Words out;
    for (int k = 0; k < kValues; ++k) {
      const auto half = static_cast<std::uint16_t>(held.low >> (16 * k));
      const float value = from == DType::f32    ? bits_float(word_of(held, k))
                          : from == DType::bf16 ? from_bf16(half)
                                                : from_f16(half);
      const std::uint32_t bits = kValues == 1 ? converted_bits(piece.conversion, value)
                                              : bits_in(piece.conversion.to.dtype, value);
      if (piece.conversion.to.dtype == DType::f32) {
        out.word[k] = bits;
      } else {
        out.word[k / 2] |= bits << (16 * (k % 2));
      }
    }
    return out;
  }
};

/// The thread's share of a slice that is read along its rows. It takes rows that are a group apart,
/// so that neighbouring threads read neighbouring bytes also where rows are short.
template <class Read>
RESHARD_HOST_DEVICE LaneSums sum_along_rows(const FingerprintPiece& piece,
                                            const WordWeights* weights, std::uint32_t count,
                                            const FingerprintShared& shared, const TileThread& me) {
  LaneSums total = {};
  const std::uint32_t groups = (count + kRowsAtOnce - 1) / kRowsAtOnce,
                      units = groups * piece.columns.divisor;
  for (std::uint32_t u = me.thread; u < units; u += me.num_threads) {
    const std::uint32_t group = quotient(u, piece.columns);
    const std::uint32_t column = u - group * piece.columns.divisor;
    const std::byte* const src = piece.src + std::int64_t{column} * Read::src_bytes(piece);
    typename Read::Held held[kRowsAtOnce] = {};
    for (std::uint32_t k = 0; k < kRowsAtOnce; ++k)
      if (group + k * groups < count)
        held[k] = Read::load(piece, src + shared.rows[group + k * groups].offset);
    const std::uint32_t place = piece.begin + column * Read::bytes(piece);
    const std::uint32_t shift = Read::kWords == 1 ? 8 * (place % 4) : 0;
    WordWeights weight[Read::kWords];
    for (int w = 0; w < Read::kWords; ++w)
      weight[w] = weights[place / 4 + static_cast<unsigned>(w)];
    for (std::uint32_t k = 0; k < kRowsAtOnce; ++k) {
      if (group + k * groups >= count) continue;
      const FingerprintShared::Row& row = shared.rows[group + k * groups];
      const Words words = Read::words(piece, held[k]);
      for (int l = 0; l < 2; ++l) {
        std::uint64_t sum = column == 0 ? piece.ones[l] : 0;
        for (int w = 0; w < Read::kWords; ++w)
          sum += weighted(words.word[w] << shift, weight[w].lane[l]);
        total.lane[l] += sum * row.weight[l];
      }
    }
  }
  return total;
}

/// An element at an address of its own, of up to eight bytes, aligned or not.
struct ElementRead {
  using Held = std::uint64_t;
  static constexpr int kRows = 1;
  static constexpr bool kWide = true;
  RESHARD_HOST_DEVICE static Held load(const FingerprintPiece& piece, const std::byte* at) {
    if (piece.conversion.converts())
      return converted_bits(piece.conversion, load_value(piece.conversion.from.dtype, at));
    const int alignment = 1 << piece.log2_alignment;
    Held out = 0;
    for (int done = 0; done < piece.element_bytes; done += alignment)
      out |= load_part(alignment, at + done) << (8 * done);
    return out;
  }
  RESHARD_HOST_DEVICE static std::uint64_t value(const FingerprintPiece&, Held held, int) {
    return held;
  }

 private:
  RESHARD_HOST_DEVICE static std::uint64_t load_part(int bytes, const std::byte* at) {
    switch (bytes) {
      case 1: return load_once<std::uint8_t>(at);
      case 2: return load_once<std::uint16_t>(at);
      case 4: return load_once<std::uint32_t>(at);
      default: return load_once<std::uint64_t>(at);
    }
  }
};

/// The elements of four rows, which are adjacent in memory.
template <class Vector>
struct FourElements {
  using Held = Vector;
  static constexpr int kRows = 4;
  static constexpr bool kWide = false;
  static constexpr int kBits = static_cast<int>(sizeof(Vector)) * 2;
  RESHARD_HOST_DEVICE static Held load(const FingerprintPiece&, const std::byte* at) {
    return load_once<Vector>(at);
  }
  RESHARD_HOST_DEVICE static std::uint64_t value(const FingerprintPiece&, const Held& held,
                                                 int row) {
    constexpr std::uint32_t kMask = 0xffffffffU >> (32 - kBits);
    return word_of(held, row * kBits / 32) >> (row * kBits % 32) & kMask;
  }
};

/// Adds an element of each row, at byte `place` of the rows' parts, to the rows' sums.
template <class Read>
RESHARD_HOST_DEVICE void add_column(const FingerprintPiece& piece, const WordWeights* weights,
                                    std::uint32_t place, const typename Read::Held& held,
                                    std::uint64_t (&sums)[Read::kRows][2]) {
  const WordWeights weight = weights[place / 4], next = weights[place / 4 + (Read::kWide ? 1 : 0)];
  for (int r = 0; r < Read::kRows; ++r) {
    const std::uint64_t value = Read::value(piece, held, r);
    for (int l = 0; l < 2; ++l) {
      sums[r][l] +=
          weighted(static_cast<std::uint32_t>(value) << (8 * (place % 4)), weight.lane[l]);
      if constexpr (Read::kWide)
        sums[r][l] += weighted(static_cast<std::uint32_t>(value >> 32), next.lane[l]);
    }
  }
}

/// The thread's share of a slice that is read across its rows: neighbouring threads take
/// neighbouring rows.
template <class Read>
RESHARD_HOST_DEVICE LaneSums sum_across_rows(const FingerprintPiece& piece,
                                             const WordWeights* weights, std::uint32_t count,
                                             const FingerprintShared& shared,
                                             const TileThread& me) {
  constexpr std::uint32_t kAtOnce = 4;
  const std::uint32_t bytes = static_cast<std::uint32_t>(
      piece.conversion.converts() ? width_of(piece.conversion.to.dtype) : piece.element_bytes);
  const std::uint32_t columns = piece.columns.divisor, vectors = count / Read::kRows,
                      units = vectors * ((columns + kUnitColumns - 1) / kUnitColumns);
  LaneSums total = {};
  for (std::uint32_t u = me.thread; u < units; u += me.num_threads) {
    const std::uint32_t first = u / vectors * kUnitColumns, vector = u % vectors;
    const std::uint32_t end = first + kUnitColumns < columns ? first + kUnitColumns : columns;
    const FingerprintShared::Row* const rows = shared.rows + vector * Read::kRows;
    const std::byte* const src = piece.src + rows->offset;
    std::uint64_t sums[Read::kRows][2];
    for (auto& of_row : sums)
      for (int l = 0; l < 2; ++l) of_row[l] = first == 0 ? piece.ones[l] : 0;
    for (std::uint32_t c = first; c < end; c += kAtOnce) {
      typename Read::Held held[kAtOnce] = {};
      for (std::uint32_t k = 0; k < kAtOnce; ++k)
        if (c + k < end) held[k] = Read::load(piece, src + (c + k) * piece.column_stride);
      for (std::uint32_t k = 0; k < kAtOnce; ++k)
        if (c + k < end)
          add_column<Read>(piece, weights, piece.begin + (c + k) * bytes, held[k], sums);
    }
    for (int r = 0; r < Read::kRows; ++r)
      for (int l = 0; l < 2; ++l) total.lane[l] += sums[r][l] * rows[r].weight[l];
  }
  return total;
}

/// Finds the addresses and weights of a slice's rows.
RESHARD_HOST_DEVICE inline void row_phase(const FingerprintLaunch& launch,
                                          const FingerprintSlice& slice, FingerprintShared& shared,
                                          const TileThread& me) {
  const FingerprintPiece& piece = launch.pieces[slice.piece];
  for (std::uint32_t i = me.thread; i < slice.count; i += me.num_threads) {
    const CopyOffsets at =
        offsets_of_loops(launch.loops + piece.first_loop, piece.num_loops, slice.first + i);
    FingerprintShared::Row& row = shared.rows[i];
    row.offset = at.src;
    for (int l = 0; l < 2; ++l)
      row.weight[l] = part_weight(piece.key[l], piece.part + static_cast<std::uint64_t>(at.dst));
  }
}

/// Keeps a thread's sum for write_phase(). All threads of the block call it.
RESHARD_HOST_DEVICE inline void keep_sum(FingerprintShared& shared, LaneSums sum,
                                         const TileThread& me) {
#if defined(__CUDA_ARCH__)
  for (int lanes = 16; lanes > 0; lanes /= 2)
    for (int l = 0; l < 2; ++l)
      sum.lane[l] +=
          __shfl_xor_sync(0xffffffffU, static_cast<unsigned long long>(sum.lane[l]), lanes);
  if (me.thread % 32 == 0) shared.sums[me.thread / 32] = sum;
#else
  shared.sums[me.thread] = sum;
#endif
}

RESHARD_HOST_DEVICE inline void sum_phase(const FingerprintLaunch& launch,
                                          const FingerprintSlice& slice, FingerprintShared& shared,
                                          const TileThread& me) {
  const FingerprintPiece piece = launch.pieces[slice.piece];
  const auto along = [&]<class Read>(Read) {
    return sum_along_rows<Read>(piece, launch.weights, slice.count, shared, me);
  };
  const auto across = [&]<class Read>(Read) {
    return sum_across_rows<Read>(piece, launch.weights, slice.count, shared, me);
  };
  LaneSums sum = {};
  switch (piece.read_by) {
    case ReadBy::bytes1: sum = along(PlainRead<std::uint8_t>()); break;
    case ReadBy::bytes2: sum = along(PlainRead<std::uint16_t>()); break;
    case ReadBy::bytes4: sum = along(PlainRead<std::uint32_t>()); break;
    case ReadBy::bytes8: sum = along(PlainRead<std::uint64_t>()); break;
    case ReadBy::bytes16: sum = along(PlainRead<Vector16>()); break;
    case ReadBy::value: sum = along(ConvertedRead<1>()); break;
    case ReadBy::values4: sum = along(ConvertedRead<4>()); break;
    case ReadBy::element: sum = across(ElementRead()); break;
    case ReadBy::elements4:
      sum = piece.element_bytes == 1   ? across(FourElements<std::uint32_t>())
            : piece.element_bytes == 2 ? across(FourElements<std::uint64_t>())
                                       : across(FourElements<Vector16>());
      break;
  }
  keep_sum(shared, sum, me);
}

/// Adds what the threads have found to the sum of the slice's piece. The order of additions does
/// not matter.
RESHARD_HOST_DEVICE inline void write_phase(const FingerprintLaunch& launch,
                                            const FingerprintSlice& slice,
                                            const FingerprintShared& shared, const TileThread& me) {
  if (me.thread >= 2) return;
  std::uint64_t sum = 0;
#if defined(__CUDA_ARCH__)
  const std::uint32_t num_sums = me.num_threads / 32;
#else
  const std::uint32_t num_sums = me.num_threads;
#endif
  for (std::uint32_t i = 0; i < num_sums; ++i) sum += shared.sums[i].lane[me.thread];
  std::uint64_t* const to = launch.sums + 2 * launch.pieces[slice.piece].sum + me.thread;
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(to), sum);
#else
  *to += sum;
#endif
}

/// Calls f(slice) for the slices of each tile of the calling block.
template <class F>
RESHARD_HOST_DEVICE void for_each_slice(const FingerprintLaunch& launch, const TileThread& me,
                                        F&& f) {
  for (std::uint32_t t = me.block; t < launch.num_tiles; t += me.num_blocks) {
    const FingerprintTile tile = launch.tiles[t];
    for (std::uint32_t s = tile.first; s < tile.end; ++s) f(launch.slices[s]);
  }
}

}  // namespace reshard::cuda
