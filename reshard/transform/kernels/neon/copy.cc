// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"
#include "reshard/transform/kernels/copy_kernels.h"
#include "reshard/transform/kernels/stream_word.h"
#include "reshard/transform/kernels/unroll.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#define RESHARD_TARGET

namespace reshard::kernels {
namespace {

struct Line {
  uint8x16_t part[4];

  static Line load(const std::byte* src) {
    const auto* const at = reinterpret_cast<const std::uint8_t*>(src);
    return {{vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)}};
  }

  /// `n` bytes from `src`, then the first bytes from `next`.
  static Line joined(const std::byte* src, std::size_t n, const std::byte* next) {
    alignas(16) std::byte both[kLine];
    std::memcpy(both, src, n);
    std::memcpy(both + n, next, kLine - n);
    return load(both);
  }
};

/// STNP has no intrinsic. It is ordered as other stores are.
inline void stream(std::byte* dst, const Line& line) {
  asm("stnp %q[a], %q[b], [%[at]]\n\tstnp %q[c], %q[d], [%[at], #32]"
      : "=m"(*reinterpret_cast<std::byte(*)[kLine]>(dst))
      : [at] "r"(dst), [a] "w"(line.part[0]), [b] "w"(line.part[1]), [c] "w"(line.part[2]),
        [d] "w"(line.part[3]));
}

inline void store_some(std::byte* dst, const std::byte* src, std::size_t n) {
  std::memcpy(dst, src, n);
}

#include "reshard/transform/kernels/copy_kernels.inc"

}  // namespace

const CopyKernels& neon_copy_kernels() { return kKernels; }

}  // namespace reshard::kernels
#else
const reshard::kernels::CopyKernels& reshard::kernels::neon_copy_kernels() {
  detail::check_failed("arm64", __FILE__, __LINE__);
}
#endif
