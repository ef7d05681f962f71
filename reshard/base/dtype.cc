// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/dtype.h"

#include <array>

namespace reshard {
namespace {

struct Row {
  DType dtype;
  int bits;
  std::string_view name;
  std::string_view torch_name;
};

// In the order of the enum, so that a row's index is its dtype's value.
constexpr std::array kRows = {
    Row{DType::boolean, 8, "BOOL", "bool"},
    Row{DType::f4, 4, "F4", "float4_e2m1fn_x2"},
    Row{DType::f6_e2m3, 6, "F6_E2M3", ""},
    Row{DType::f6_e3m2, 6, "F6_E3M2", ""},
    Row{DType::u8, 8, "U8", "uint8"},
    Row{DType::i8, 8, "I8", "int8"},
    Row{DType::f8_e5m2, 8, "F8_E5M2", "float8_e5m2"},
    Row{DType::f8_e4m3, 8, "F8_E4M3", "float8_e4m3fn"},
    Row{DType::f8_e8m0, 8, "F8_E8M0", "float8_e8m0fnu"},
    Row{DType::f8_e4m3fnuz, 8, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    Row{DType::f8_e5m2fnuz, 8, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    Row{DType::i16, 16, "I16", "int16"},
    Row{DType::u16, 16, "U16", "uint16"},
    Row{DType::f16, 16, "F16", "float16"},
    Row{DType::bf16, 16, "BF16", "bfloat16"},
    Row{DType::i32, 32, "I32", "int32"},
    Row{DType::u32, 32, "U32", "uint32"},
    Row{DType::f32, 32, "F32", "float32"},
    Row{DType::c64, 64, "C64", "complex64"},
    Row{DType::f64, 64, "F64", "float64"},
    Row{DType::i64, 64, "I64", "int64"},
    Row{DType::u64, 64, "U64", "uint64"},
    Row{DType::i4, 4, "I4", ""},
};

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

int bits(DType dtype) { return row(dtype).bits; }

std::string_view name(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& r : kRows)
    if (r.name == name) return r.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_from_torch_name(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const Row& r : kRows)
    if (!name.empty() && r.torch_name == name) return r.dtype;
  return std::nullopt;
}

std::optional<std::int64_t> bytes_of(DType dtype, std::int64_t elements) {
  std::int64_t total = 0;
  if (elements < 0 || __builtin_mul_overflow(elements, std::int64_t{bits(dtype)}, &total) ||
      total % 8 != 0) {
    return std::nullopt;
  }
  return total / 8;
}

}  // namespace reshard
