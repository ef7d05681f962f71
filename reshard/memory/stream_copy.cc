// SPDX-License-Identifier: Apache-2.0
// libc uses non-temporal stores only for copies of about the size of the cache, which servers
// report as hundreds of MiB; for smaller ones every destination line is read before it is
// overwritten. There is one ascending stream: several streams, which help with strided runs, were
// slower here at every size below 64 MiB.
#include "reshard/memory/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace reshard {

#if defined(__SSE2__)
namespace {

constexpr std::size_t kLine = 64;

inline void stream_line(std::byte* dst, const std::byte* src) {
  const auto* from = reinterpret_cast<const __m128i*>(src);
  auto* to = reinterpret_cast<__m128i*>(dst);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

}  // namespace

void stream_copy(std::byte* dst, const std::byte* src, std::size_t n) {
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(dst) % kLine) % kLine;
  if (n < head + kLine) {
    if (n != 0) std::memcpy(dst, src, n);
    return;
  }
  std::memcpy(dst, src, head);
  std::size_t at = head;
  for (; n - at >= kLine; at += kLine) stream_line(dst + at, src + at);
  std::memcpy(dst + at, src + at, n - at);
  _mm_sfence();
}
#else
void stream_copy(std::byte* dst, const std::byte* src, std::size_t n) {
  if (n != 0) std::memcpy(dst, src, n);
}
#endif

}  // namespace reshard
