// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace reshard {

/// The element types of the safetensors format and, last, integers of 4 bits, which files store
/// packed in words: a code c is the number c - 8.
// clang-format off
enum class DType : std::uint8_t {
  boolean, f4, f6_e2m3, f6_e3m2, u8, i8, f8_e5m2, f8_e4m3, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz,
  i16, u16, f16, bf16, i32, u32, f32, c64, f64, i64, u64, i4,
};
// clang-format on
inline constexpr DType kLastDType = DType::i4;

/// Bits of one element: 4, 6, 8, 16, 32 or 64.
int bits(DType dtype);
/// Bytes of this many elements, which fill whole bytes. @pre elements * bits(dtype) does not
/// overflow
inline std::int64_t size_of(DType dtype, std::int64_t elements) {
  return elements * bits(dtype) / 8;
}

/// The name in a safetensors header: "BF16", "F8_E4M3", ...; "I4", which no header has.
std::string_view name(DType dtype);

/// The dtype with this name, or none. Readers of files refuse "I4".
std::optional<DType> dtype_from_name(std::string_view name);

/// The dtype with this torch name, as in Hugging Face configs ("bfloat16", "torch.float16", ...),
/// or none.
std::optional<DType> dtype_from_torch_name(std::string_view name);

/// The size of `elements` elements in bytes, or none if it is not whole or overflows int64.
std::optional<std::int64_t> bytes_of(DType dtype, std::int64_t elements);

}  // namespace reshard
