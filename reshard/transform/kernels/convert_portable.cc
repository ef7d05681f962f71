// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/convert_kernels.h"

namespace reshard::kernels {
namespace {

template <auto One, class From, class To>
void each(const std::byte* src, std::byte* dst, std::ptrdiff_t n, bool) {
  convert_each<One, From, To>(src, dst, n);
}

}  // namespace

const ConvertKernels& portable_convert_kernels() {
  static constexpr ConvertKernels kKernels = {
      each<from_bf16, std::uint16_t, float>, each<from_f16, std::uint16_t, float>,
      each<to_bf16, float, std::uint16_t>, each<to_f16, float, std::uint16_t>};
  return kKernels;
}

}  // namespace reshard::kernels
