// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace reshard::kernels {

/// Copies 4, 8 or 16 bytes, past the caches where the processor has such a store. `dst` is aligned
/// to kBytes, `src` to nothing.
template <std::size_t kBytes>
inline void stream_word(std::byte* dst, const std::byte* src) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(__x86_64__)
  if constexpr (kBytes == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
  } else if constexpr (kBytes == 8) {
    long long word = 0;
    std::memcpy(&word, src, sizeof word);
    _mm_stream_si64(reinterpret_cast<long long*>(dst), word);
  } else {
    int word = 0;
    std::memcpy(&word, src, sizeof word);
    _mm_stream_si32(reinterpret_cast<int*>(dst), word);
  }
#else
  std::memcpy(dst, src, kBytes);
#endif
}

}  // namespace reshard::kernels
