// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"
#include "reshard/transform/kernels/copy_kernels.h"
#include "reshard/transform/kernels/stream_word.h"
#include "reshard/transform/kernels/unroll.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define RESHARD_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi2")))

namespace reshard::kernels {
namespace {

struct Line {
  __m512i bytes;

  RESHARD_TARGET static Line load(const std::byte* src) { return {_mm512_loadu_si512(src)}; }

  /// `n` bytes from `src`, then the first bytes from `next`. Lanes that are masked out are not
  /// accessed, so that `next - n` need not be memory.
  RESHARD_TARGET static Line joined(const std::byte* src, std::size_t n, const std::byte* next) {
    const __mmask64 first = _bzhi_u64(~0ULL, static_cast<unsigned>(n));
    const auto shifted = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(next) - n);
    return {_mm512_mask_loadu_epi8(_mm512_maskz_loadu_epi8(first, src), ~first, shifted)};
  }
};

RESHARD_TARGET inline void stream(std::byte* dst, Line line) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), line.bytes);
}

/// @pre n < 64
RESHARD_TARGET inline void store_some(std::byte* dst, const std::byte* src, std::size_t n) {
  const __mmask64 mask = _bzhi_u64(~0ULL, static_cast<unsigned>(n));
  _mm512_mask_storeu_epi8(dst, mask, _mm512_maskz_loadu_epi8(mask, src));
}

#include "reshard/transform/kernels/copy_kernels.inc"

}  // namespace

const CopyKernels& avx512_copy_kernels() { return kKernels; }

}  // namespace reshard::kernels
#else
const reshard::kernels::CopyKernels& reshard::kernels::avx512_copy_kernels() {
  detail::check_failed("x86-64", __FILE__, __LINE__);
}
#endif
