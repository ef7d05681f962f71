// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/copy_tiny.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace reshard::kernels {
namespace {

using Loop = StridedCopy::Loop;

constexpr Index kLineBytes = 64;
constexpr Index kVector = 16;

typedef std::uint8_t Vector __attribute__((vector_size(16)));

/// Interleaves the elements of E bytes of the lower (kHigh 0) or upper (kHigh 1) halves of a and b.
template <std::size_t E, int kHigh>
Vector interleave(Vector a, Vector b) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    // Byte i of the result is byte i % E of element i / (2E) of a (even places) or of b (odd
    // places).
    return __builtin_shufflevector(
        a, b, static_cast<int>(8 * kHigh + i / (2 * E) * E + i % E + (i / E % 2 == 1 ? 16 : 0))...);
  }(std::make_index_sequence<16>{});
}

/// Transposes a square of 16/E by 16/E elements.
template <std::size_t E>
void turn(const std::byte* src, Index src_stride, std::byte* dst, Index dst_stride) {
  constexpr std::size_t n = kVector / E;
  Vector rows[n];
  for (std::size_t i = 0; i < n; ++i)
    std::memcpy(&rows[i], src + static_cast<Index>(i) * src_stride, kVector);
  // Each round is a perfect shuffle of the n * n elements; log2(n) of them exchange row and column.
  for (std::size_t round = 1; round < n; round *= 2) {
    Vector next[n];
    for (std::size_t i = 0; i < n / 2; ++i) {
      next[2 * i] = interleave<E, 0>(rows[i], rows[i + n / 2]);
      next[2 * i + 1] = interleave<E, 1>(rows[i], rows[i + n / 2]);
    }
    std::copy(next, next + n, rows);
  }
  for (std::size_t i = 0; i < n; ++i)
    std::memcpy(dst + static_cast<Index>(i) * dst_stride, &rows[i], kVector);
}

void write_line(std::byte* dst, const std::byte* line, bool streaming) {
#if defined(__x86_64__)
  if (streaming && reinterpret_cast<std::uintptr_t>(dst) % kVector == 0) {
    for (Index at = 0; at < kLineBytes; at += kVector)
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(line + at)));
    return;
  }
#endif
  (void)streaming;
  std::memcpy(dst, line, kLineBytes);
}

/// Transposes two dimensions of elements of E bytes: `across` is contiguous in the source, `along`
/// in the destination.
template <std::size_t E>
void transpose(const Loop& across, const Loop& along, const std::byte* src, std::byte* dst,
               bool streaming) {
  constexpr Index e = E, side = kLineBytes / e, part = kVector / e;
  alignas(kLineBytes) std::byte tile[static_cast<std::size_t>(side * kLineBytes)];
  const Index whole_across = across.count / side * side, whole_along = along.count / side * side;
  const auto element = [&](Index i, Index j) {
    std::memcpy(dst + i * across.dst_stride + j * e, src + i * e + j * along.src_stride, E);
  };
  for (Index j = 0; j < whole_along; j += side) {
    for (Index i = 0; i < whole_across; i += side) {
      for (Index y = 0; y < side; y += part)
        for (Index x = 0; x < side; x += part)
          turn<E>(src + (i + x) * e + (j + y) * along.src_stride, along.src_stride,
                  tile + x * kLineBytes + y * e, kLineBytes);
      for (Index x = 0; x < side; ++x)
        write_line(dst + (i + x) * across.dst_stride + j * e, tile + x * kLineBytes, streaming);
    }
    for (Index i = whole_across; i < across.count; ++i)
      for (Index y = 0; y < side; ++y) element(i, j + y);
  }
  for (Index i = 0; i < across.count; ++i)
    for (Index j = whole_along; j < along.count; ++j) element(i, j);
}

/// Copies run by run. E: the size of a run if known at compile time, else 0.
template <std::size_t E>
void copy_each(const StridedCopy& copy, const std::byte* src, std::byte* dst) {
  if (copy.num_loops == 0) {
    std::memcpy(dst + copy.dst_offset, src + copy.src_offset,
                static_cast<std::size_t>(copy.run_bytes));
    return;
  }
  StridedCopy outer = copy;
  const Loop inner = outer.loops[static_cast<std::size_t>(--outer.num_loops)];
  for_each_run(outer, [&](Index s, Index d, Index bytes) {
    for (Index i = 0; i < inner.count; ++i)
      std::memcpy(dst + d + i * inner.dst_stride, src + s + i * inner.src_stride,
                  E != 0 ? E : static_cast<std::size_t>(bytes));
  });
}

template <std::size_t E>
void copy_elements(const StridedCopy& copy, const std::byte* src, std::byte* dst, bool streaming) {
  const int last = copy.num_loops - 1;
  int across = last - 1;
  while (across >= 0 && copy.loops[static_cast<std::size_t>(across)].src_stride != copy.run_bytes)
    --across;
  if (across < 0 || copy.loops[static_cast<std::size_t>(last)].dst_stride != copy.run_bytes)
    return copy_each<E>(copy, src, dst);
  StridedCopy outer = copy;
  outer.num_loops = 0;
  for (int k = 0; k < last; ++k)
    if (k != across)
      outer.loops[static_cast<std::size_t>(outer.num_loops++)] =
          copy.loops[static_cast<std::size_t>(k)];
  for_each_run(outer, [&](Index s, Index d, Index) {
    transpose<E>(copy.loops[static_cast<std::size_t>(across)],
                 copy.loops[static_cast<std::size_t>(last)], src + s, dst + d, streaming);
  });
}

}  // namespace

void copy_tiny(const StridedCopy& copy, const std::byte* src, std::byte* dst, CopyHint hint) {
  const bool streaming = hint == CopyHint::streaming;
  switch (copy.run_bytes) {
    case 1: return copy_elements<1>(copy, src, dst, streaming);
    case 2: return copy_elements<2>(copy, src, dst, streaming);
    case 4: return copy_elements<4>(copy, src, dst, streaming);
    case 8: return copy_elements<8>(copy, src, dst, streaming);
    case 16: return copy_each<16>(copy, src, dst);
    case 32: return copy_each<32>(copy, src, dst);
    default: return copy_each<0>(copy, src, dst);
  }
}

}  // namespace reshard::kernels
