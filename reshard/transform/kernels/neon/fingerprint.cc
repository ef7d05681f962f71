// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"
#include "reshard/transform/kernels/fingerprint_kernels.h"
#include "reshard/transform/kernels/unroll.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#define RESHARD_TARGET

namespace reshard::kernels {
namespace {

constexpr std::size_t kRows = 4;

struct Vector {
  static constexpr std::size_t kBytes = 16;
  uint64x2_t v;

  static Vector zero() { return {vdupq_n_u64(0)}; }
  static Vector load(const void* p) {
    return {vreinterpretq_u64_u8(vld1q_u8(static_cast<const std::uint8_t*>(p)))};
  }
  /// Bytes [from, to), which begin at `p`; all others 0.
  static Vector load_some(const std::byte* p, std::size_t from, std::size_t to) {
    alignas(16) std::byte bytes[kBytes] = {};
    std::memcpy(bytes + from, p, to - from);
    return load(bytes);
  }
};

inline Vector odd_words(Vector a) { return {vshrq_n_u64(a.v, 32)}; }
inline Vector plus(Vector a, Vector b) { return {vaddq_u64(a.v, b.v)}; }
/// The products of the low halves of the 64-bit lanes.
inline Vector multiply_words(Vector a, Vector b) {
  return {vmull_u32(vmovn_u64(a.v), vmovn_u64(b.v))};
}
inline Vector multiply(Vector a, std::uint64_t b) {
  const uint32x2_t low = vmovn_u64(a.v), high = vshrn_n_u64(a.v, 32);
  const auto by_low = static_cast<std::uint32_t>(b), by_high = static_cast<std::uint32_t>(b >> 32);
  const uint64x2_t cross = vmlal_n_u32(vmull_n_u32(low, by_high), high, by_low);
  return {vaddq_u64(vmull_n_u32(low, by_low), vshlq_n_u64(cross, 32))};
}
inline std::uint64_t sum_of(Vector a) { return vaddvq_u64(a.v); }

#include "reshard/transform/kernels/fingerprint_kernels.inc"

}  // namespace

void fingerprint_neon(const PartBlock& block, std::array<std::uint64_t, 2>& sum) {
  add_block(block, sum);
}

}  // namespace reshard::kernels
#else
void reshard::kernels::fingerprint_neon(const PartBlock&, std::array<std::uint64_t, 2>&) {
  detail::check_failed("arm64", __FILE__, __LINE__);
}
#endif
