// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/convert_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace reshard::kernels {
namespace {

/// Eight elements at a time: a register of halves.
constexpr std::ptrdiff_t kStep = 8;

inline uint8x16_t load(const std::byte* src) {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(src));
}
inline void put(std::byte* dst, uint8x16_t bits) {
  vst1q_u8(reinterpret_cast<std::uint8_t*>(dst), bits);
}

inline uint16x4_t bf16_bits(uint32x4_t bits) {
  const uint32x4_t top = vshrq_n_u32(bits, 16);
  const uint32x4_t even = vaddq_u32(vdupq_n_u32(0x7fff), vandq_u32(top, vdupq_n_u32(1)));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, even), 16);
  const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
  const uint32x4_t nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000));
  const uint32x4_t lost = vceqzq_u32(vandq_u32(top, vdupq_n_u32(0x7f)));
  const uint32x4_t kept = vorrq_u32(top, vandq_u32(lost, vdupq_n_u32(0x40)));
  return vmovn_u32(vbslq_u32(nan, kept, rounded));
}

struct FromBf16 {
  static constexpr auto one = from_bf16;
  static void step(const std::byte* src, std::byte* dst) {
    const uint16x8_t halves = vreinterpretq_u16_u8(load(src));
    put(dst, vreinterpretq_u8_u32(vshll_n_u16(vget_low_u16(halves), 16)));
    put(dst + 16, vreinterpretq_u8_u32(vshll_n_u16(vget_high_u16(halves), 16)));
  }
};

struct FromF16 {
  static constexpr auto one = from_f16;
  static void step(const std::byte* src, std::byte* dst) {
    const float16x8_t halves = vreinterpretq_f16_u8(load(src));
    put(dst, vreinterpretq_u8_f32(vcvt_f32_f16(vget_low_f16(halves))));
    put(dst + 16, vreinterpretq_u8_f32(vcvt_f32_f16(vget_high_f16(halves))));
  }
};

struct ToBf16 {
  static constexpr auto one = to_bf16;
  static void step(const std::byte* src, std::byte* dst) {
    const uint16x4_t low = bf16_bits(vreinterpretq_u32_u8(load(src)));
    const uint16x4_t high = bf16_bits(vreinterpretq_u32_u8(load(src + 16)));
    put(dst, vreinterpretq_u8_u16(vcombine_u16(low, high)));
  }
};

struct ToF16 {
  static constexpr auto one = to_f16;
  static void step(const std::byte* src, std::byte* dst) {
    const float16x4_t low = vcvt_f16_f32(vreinterpretq_f32_u8(load(src)));
    const float16x4_t high = vcvt_f16_f32(vreinterpretq_f32_u8(load(src + 16)));
    put(dst, vreinterpretq_u8_f16(vcombine_f16(low, high)));
  }
};

template <class Kernel, class From, class To>
void convert(const std::byte* src, std::byte* dst, std::ptrdiff_t n, bool) {
  constexpr auto kFrom = static_cast<std::ptrdiff_t>(sizeof(From)),
                 kTo = static_cast<std::ptrdiff_t>(sizeof(To));
  std::ptrdiff_t i = 0;
  for (; i + kStep <= n; i += kStep) Kernel::step(src + i * kFrom, dst + i * kTo);
  convert_each<Kernel::one, From, To>(src + i * kFrom, dst + i * kTo, n - i);
}

}  // namespace

const ConvertKernels& neon_convert_kernels() {
  static constexpr ConvertKernels kKernels = {
      convert<FromBf16, std::uint16_t, float>, convert<FromF16, std::uint16_t, float>,
      convert<ToBf16, float, std::uint16_t>, convert<ToF16, float, std::uint16_t>};
  return kKernels;
}

}  // namespace reshard::kernels
#else
const reshard::kernels::ConvertKernels& reshard::kernels::neon_convert_kernels() {
  return portable_convert_kernels();
}
#endif
