// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"
#include "reshard/transform/kernels/copy_kernels.h"
#include "reshard/transform/kernels/stream_word.h"
#include "reshard/transform/kernels/unroll.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define RESHARD_TARGET __attribute__((target("avx2")))

namespace reshard::kernels {
namespace {

struct Line {
  __m256i low, high;

  RESHARD_TARGET static Line load(const std::byte* src) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32))};
  }

  /// `n` bytes from `src`, then the first bytes from `next`.
  RESHARD_TARGET static Line joined(const std::byte* src, std::size_t n, const std::byte* next) {
    alignas(32) std::byte both[kLine];
    std::memcpy(both, src, n);
    std::memcpy(both + n, next, kLine - n);
    return load(both);
  }
};

RESHARD_TARGET inline void stream(std::byte* dst, const Line& line) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), line.low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), line.high);
}

RESHARD_TARGET inline void store_some(std::byte* dst, const std::byte* src, std::size_t n) {
  std::memcpy(dst, src, n);
}

#include "reshard/transform/kernels/copy_kernels.inc"

}  // namespace

const CopyKernels& avx2_copy_kernels() { return kKernels; }

}  // namespace reshard::kernels
#else
const reshard::kernels::CopyKernels& reshard::kernels::avx2_copy_kernels() {
  detail::check_failed("x86-64", __FILE__, __LINE__);
}
#endif
