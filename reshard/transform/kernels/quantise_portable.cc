// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/kernels/quantise_kernels.h"

namespace reshard::kernels {
namespace {

struct Bf16 {
  static constexpr Rounding kRounding = Rounding::bf16;
  using Bits = std::uint16_t;
  static float widen(Bits bits) { return from_bf16(bits); }
  static Bits narrow(float value) { return to_bf16(value); }
};

struct F16 {
  static constexpr Rounding kRounding = Rounding::f16;
  using Bits = std::uint16_t;
  static float widen(Bits bits) { return from_f16(bits); }
  static Bits narrow(float value) { return to_f16(value); }
};

struct F32 {
  static constexpr Rounding kRounding = Rounding::f32;
  using Bits = std::uint32_t;
  static float widen(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits narrow(float value) { return std::bit_cast<Bits>(value); }
};

template <class Source>
float load(const std::byte* src, std::ptrdiff_t i) {
  typename Source::Bits bits;
  std::memcpy(&bits, src + i * static_cast<std::ptrdiff_t>(sizeof bits), sizeof bits);
  return Source::widen(bits);
}

template <class Source>
void store(float value, std::byte* dst, std::ptrdiff_t i) {
  const typename Source::Bits bits = Source::narrow(value);
  std::memcpy(dst + i * static_cast<std::ptrdiff_t>(sizeof bits), &bits, sizeof bits);
}

template <class Source>
void amaxes(const std::byte* src, std::ptrdiff_t n, std::ptrdiff_t block, std::uint32_t* maxima) {
  for (std::ptrdiff_t begin = 0; begin < n; begin += block, ++maxima)
    for (std::ptrdiff_t i = begin; i < std::min(begin + block, n); ++i)
      *maxima = std::max(*maxima, float_bits(load<Source>(src, i)) & kFloatMagnitude);
}

template <class Source, CodeKind Kind, bool Divides>
void encode(const std::byte* src, std::byte* data, std::ptrdiff_t n, std::ptrdiff_t block,
            const float* by, bool, const std::byte*) {
  for (std::ptrdiff_t begin = 0; begin < n; begin += block, ++by) {
    const std::ptrdiff_t end = std::min(begin + block, n);
    const auto code_of = [&](std::ptrdiff_t i) {
      return encoded(Kind, Divides, load<Source>(src, i), *by, Source::kRounding);
    };
    if constexpr (code_bits(Kind) == 8) {
      for (std::ptrdiff_t i = begin; i < end; ++i) data[i] = static_cast<std::byte>(code_of(i));
    } else {
      for (std::ptrdiff_t i = begin; i < end; i += 2) {
        data[i / 2] = static_cast<std::byte>(code_of(i) | code_of(i + 1) << 4);
      }
    }
  }
}

template <CodeKind Kind>
std::uint32_t code_at(const std::byte* data, std::ptrdiff_t i) {
  if constexpr (code_bits(Kind) == 8) return std::to_integer<std::uint32_t>(data[i]);
  return std::to_integer<std::uint32_t>(data[i / 2]) >> (i % 2 * 4) & 0xfU;
}

template <class Source, CodeKind Kind>
void decode(const std::byte* data, std::byte* dst, std::ptrdiff_t n, std::ptrdiff_t block,
            const float* scales, bool) {
  for (std::ptrdiff_t begin = 0; begin < n; begin += block, ++scales)
    for (std::ptrdiff_t i = begin; i < std::min(begin + block, n); ++i)
      store<Source>(decoded(Kind, code_at<Kind>(data, i), *scales), dst, i);
}

template <class Source, std::size_t... Kind>
constexpr QuantiseKernels::OfSource kernels_of(std::index_sequence<Kind...>) {
  return {amaxes<Source>,
          {encode<Source, CodeKind{Kind}, false>...},
          {encode<Source, CodeKind{Kind}, true>...},
          {decode<Source, CodeKind{Kind}>...}};
}

void scales(const ScaleMaker& maker, const std::uint32_t* maxima, std::ptrdiff_t n,
            std::uint32_t* stored, float* by) {
  for (std::ptrdiff_t b = 0; b < n; ++b) {
    const BlockScale scale = block_scale(maker, maxima[b]);
    stored[b] = scale.stored;
    by[b] = scale.by;
  }
}

}  // namespace

const QuantiseKernels& portable_quantise_kernels() {
  constexpr auto kKinds = std::make_index_sequence<kCodeKinds>();
  static constexpr QuantiseKernels kKernels = {kernels_of<Bf16>(kKinds), kernels_of<F16>(kKinds),
                                               kernels_of<F32>(kKinds), scales};
  return kKernels;
}

}  // namespace reshard::kernels
