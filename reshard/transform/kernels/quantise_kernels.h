// SPDX-License-Identifier: Apache-2.0
// The inner loops behind quantise.h: one table of functions for each instruction set. All produce
// the bytes that quantise_arithmetic.h defines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reshard/transform/quantise_arithmetic.h"

namespace reshard::kernels {

/// Arrays of scales have a length that is a multiple of this.
inline constexpr std::ptrdiff_t kScalesTogether = 16;

/// The alignment of blocks that are stored past the caches: of codes in bytes; of plain numbers,
/// kStreamNumbers, in elements.
constexpr std::ptrdiff_t stream_unit(CodeKind kind) { return code_bits(kind) == 8 ? 32 : 8; }
inline constexpr std::ptrdiff_t kStreamNumbers = 16;

/// Elements [0, n) of a row, cut into blocks of `block`; the last may be shorter. 4-bit blocks have
/// an even length, and so have rows. n > 0, block > 0. No alignment is needed.
struct QuantiseKernels {
  /// maxima[b] becomes the larger of itself and the largest magnitude of block b, as a float's
  /// bits; NaN is larger than all others.
  using Amaxes = void (*)(const std::byte* src, std::ptrdiff_t n, std::ptrdiff_t block,
                          std::uint32_t* maxima);
  /// by[b]: BlockScale::by of block b; integers are divided by it. Only the portable kernels accept
  /// NaN in a block whose `by` is not NaN, and quotients above the largest number. `stream`
  /// requests stores past the caches, which are weakly ordered. `next`: n elements to prefetch
  /// meanwhile, or src.
  using Encode = void (*)(const std::byte* src, std::byte* data, std::ptrdiff_t n,
                          std::ptrdiff_t block, const float* by, bool stream,
                          const std::byte* next);
  /// scales[b]: the multiplier of the codes of block b.
  using Decode = void (*)(const std::byte* data, std::byte* dst, std::ptrdiff_t n,
                          std::ptrdiff_t block, const float* scales, bool stream);

  /// The functions for one plain dtype; encode and decode are indexed by CodeKind.
  struct OfSource {
    Amaxes amaxes;
    std::array<Encode, kCodeKinds> multiply, divide;
    std::array<Decode, kCodeKinds> decode;
  };
  OfSource bf16, f16, f32;

  /// block_scale() of each maximum. n is a multiple of kScalesTogether.
  void (*scales)(const ScaleMaker& maker, const std::uint32_t* maxima, std::ptrdiff_t n,
                 std::uint32_t* stored, float* by);
};

const QuantiseKernels& portable_quantise_kernels();
/// @pre the processor has the instructions; AVX2 with F16C
const QuantiseKernels& avx2_quantise_kernels();
bool has_avx2_quantise_kernels();
/// @pre as above
const QuantiseKernels& avx512_quantise_kernels();
/// The portable ones on a processor that is not arm64.
const QuantiseKernels& neon_quantise_kernels();

}  // namespace reshard::kernels
