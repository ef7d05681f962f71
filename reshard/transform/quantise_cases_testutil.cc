// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/quantise_cases_testutil.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "reshard/base/hash.h"
#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/quantise.h"

namespace reshard {

const std::vector<QuantFormat>& quant_formats() {
  static const std::vector<QuantFormat> kAll = [] {
    std::vector<QuantFormat> f;
    for (const char* name :
         {"mxfp8", "mxfp8_floor", "mxfp8_swizzled", "mxfp4", "mxfp4_floor", "mxfp4_swizzled",
          "nvfp4", "nvfp4_swizzled", "fp8_block", "fp8_block_pow2", "fp8_group", "fp8_group_pow2",
          "fp8_channel", "fp8_tensor", "int4_group32", "int4_channel", "int8_channel",
          "int8_packed_group128"})
      f.push_back(*quant_format_from_name(name));
    for (const DType data : {DType::i4, DType::i8, DType::u8})
      for (const DType scale : {DType::f16, DType::f32})
        f.push_back({.data = data, .scale = scale, .block_cols = 6, .rule = ScaleRule::exact});
    f.push_back({.data = DType::i4,
                 .scale = DType::bf16,
                 .block_rows = 0,
                 .block_cols = 0,
                 .rule = ScaleRule::exact});
    f.push_back({.zero_block = 127});
    f.push_back({.scale = DType::f32, .block_rows = 3, .block_cols = 5, .rule = ScaleRule::floor});
    f.push_back({.scale = DType::f32, .block_rows = 0, .block_cols = 6, .rule = ScaleRule::exact});
    f.push_back({.block_rows = 7, .block_cols = 0, .zero_block = 1});
    f.push_back({.data = DType::f4, .scale = DType::f32, .block_rows = 2, .block_cols = 10});
    f.push_back(
        {.data = DType::f4, .scale = DType::f8_e4m3, .block_cols = 34, .rule = ScaleRule::exact});
    f.push_back({.scale = DType::f8_e4m3,
                 .block_cols = 16,
                 .rule = ScaleRule::exact,
                 .tensor_factor = true});
    return f;
  }();
  return kAll;
}

PlainMatrix::PlainMatrix(DType dtype, Index rows, Index cols, const std::vector<float>& values)
    : dtype_(dtype), rows_(rows), cols_(cols) {
  for (const float v : values) {
    if (dtype == DType::f32) put(std::bit_cast<std::uint32_t>(v), 4);
    if (dtype == DType::bf16) put(to_bf16(v), 2);
    if (dtype == DType::f16) put(to_f16(v), 2);
  }
  row_bytes_ = cols * width() + 5;
  std::vector<std::byte> spaced(static_cast<std::size_t>(rows * row_bytes_ + 3));
  for (Index r = 0; r < rows && cols > 0; ++r)
    std::memcpy(&spaced[static_cast<std::size_t>(r * row_bytes_ + 3)],
                &bytes_[static_cast<std::size_t>(r * cols * width())],
                static_cast<std::size_t>(cols * width()));
  bytes_ = std::move(spaced);
}

std::vector<float> PlainMatrix::values() const {
  std::vector<float> floats;
  for (Index r = 0; r < rows_; ++r)
    for (Index c = 0; c < cols_; ++c) floats.push_back(value(3 + r * row_bytes_ + c * width()));
  return floats;
}

void PlainMatrix::put(std::uint32_t bits, int count) {
  for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<std::byte>(bits >> (8 * i)));
}

float PlainMatrix::value(Index at) const {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &bytes_[static_cast<std::size_t>(at)], static_cast<std::size_t>(width()));
  if (dtype_ == DType::f32) return std::bit_cast<float>(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return dtype_ == DType::bf16 ? from_bf16(half) : from_f16(half);
}

std::vector<float> random_values(Index count, std::uint64_t seed) {
  const float specials[] = {0.0F,    -0.0F,   1e-40F, -1e-45F, 0x1p-126F, 448.0F,
                            -464.0F, 0x1p-9F, 6.0F,   5.0F,    1e38F,     -3e38F};
  std::vector<float> values;
  const std::uint64_t kind = mix64(seed) % 5;
  for (Index i = 0; i < count; ++i) {
    const std::uint64_t word = mix64(mix64(seed ^ 77) + static_cast<std::uint64_t>(i));
    const auto bits = static_cast<std::uint32_t>(word);
    const float weight = static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-36F;
    float value = weight;
    if (kind == 1) value = std::bit_cast<float>(bits);
    if (kind == 2) value = static_cast<float>(static_cast<int>(word % 29) - 14) * 0.25F;
    if (kind == 3 && word >> 40 == 0) value = specials[word % std::size(specials)];
    if (kind == 4) value = (word >> 40) % 4 == 0 ? specials[word % std::size(specials)] : weight;
    if (std::isnan(value) || std::isinf(value)) value = (word >> 50) % 64 == 0 ? value : weight;
    values.push_back(value);
  }
  return values;
}

QuantBytes quantised(const QuantFormat& format, PlainMatrix& plain) {
  const FloatMatrix src = plain.view();
  QuantBytes bytes = quant_bytes(format, src.rows, src.cols, std::byte{0xa5});
  quantise(src, view(format, src.rows, src.cols, bytes));
  return bytes;
}

}  // namespace reshard
