// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/quantise_testutil.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "reshard/transform/kernels/convert_kernels.h"

namespace reshard {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool is_integer(DType dtype) {
  return dtype == DType::i4 || dtype == DType::i8 || dtype == DType::u8;
}

/// The largest number of a dtype; for integers half the range, which amax becomes.
double largest(DType dtype) {
  if (is_integer(dtype)) return dtype == DType::i4 ? 7.5 : 127.5;
  return dtype == DType::f4 ? 6 : 448;
}

/// Rounded to a dtype of numbers.
float as(DType dtype, float value) {
  if (dtype == DType::bf16) return from_bf16(to_bf16(value));
  return dtype == DType::f16 ? from_f16(to_f16(value)) : value;
}

/// Values of the codes without a sign, NaN left out.
const std::vector<double>& positive_values(DType dtype) {
  const auto table = [](DType of, unsigned codes) {
    std::vector<double> values;
    for (unsigned code = 0; code < codes; ++code) values.push_back(value_of_code(of, code));
    return values;
  };
  static const std::vector<double> kF4 = table(DType::f4, 8), kF8 = table(DType::f8_e4m3, 0x7f);
  return dtype == DType::f4 ? kF4 : kF8;
}

/// The scale of a block, and how elements are brought to its size.
struct Scale {
  unsigned byte = 0;
  float value = 0;
  enum class Way { divide, multiply, all_nan } way = Way::divide;
  float by = 1;
};

Scale power_scale(const QuantFormat& format, double amax) {
  const double top = largest(format.data);
  int exponent = -127;
  if (format.rule == ScaleRule::up) {
    while (exponent < 127 && amax > top * std::ldexp(1.0, exponent)) ++exponent;
  } else if (std::isinf(amax)) {
    exponent = 128 - std::ilogb(top);
  } else {
    exponent = std::max(std::ilogb(amax) - std::ilogb(top), -127);
  }
  if (format.scale == DType::f32) exponent = std::max(exponent, -126);
  Scale scale{.byte = static_cast<unsigned>(exponent + 127),
              .value = static_cast<float>(std::ldexp(1.0, exponent)),
              .way = Scale::Way::multiply,
              .by = static_cast<float>(std::ldexp(1.0, -exponent))};
  const bool left_alone = format.rule == ScaleRule::up && exponent == -127;
  if (left_alone) scale.by = 1;
  return scale;
}

float quotient_or_largest(double a, double b) {
  const auto q = static_cast<float>(a / b);
  return std::isinf(q) ? std::numeric_limits<float>::max() : q;
}

Scale e4m3_scale(const QuantFormat& format, float amax, float factor) {
  const float relative = amax / static_cast<float>(largest(format.data));
  const unsigned code =
      nearest_code(DType::f8_e4m3, static_cast<float>(double{relative} / double{factor}));
  const double value = value_of_code(DType::f8_e4m3, code);
  const float inverse = quotient_or_largest(1, factor);
  return {.byte = code,
          .value = static_cast<float>(value),
          .way = Scale::Way::multiply,
          .by = code == 0 ? 0 : quotient_or_largest(inverse, value)};
}

float exact(double amax, double divisor) {
  if (std::isinf(amax)) return 0x1p127F;
  const auto scale = static_cast<float>(amax / divisor);
  return scale == 0 ? 1 : scale;
}

Scale integer_scale(const QuantFormat& format, double amax) {
  if (std::isnan(amax)) return {.value = static_cast<float>(kNan), .way = Scale::Way::all_nan};
  const float most = format.scale == DType::f16 ? 65504.0F : 0x1p127F;
  float scale = std::isinf(amax) ? most : static_cast<float>(amax / largest(format.data));
  scale = as(format.scale, std::min(scale, most));
  const int places = format.scale == DType::bf16 ? 7 : format.scale == DType::f16 ? 10 : 23;
  if (scale == 0) scale = std::ldexp(1.0F, -places);
  return {.value = scale, .way = Scale::Way::divide, .by = scale};
}

Scale scale_of(const QuantFormat& format, double amax, float factor) {
  if (is_integer(format.data)) return integer_scale(format, amax);
  const bool small = format.scale == DType::f8_e4m3;
  if (std::isnan(amax) || (small && std::isnan(factor))) {
    return {.byte = format.scale == DType::f8_e8m0 ? 255U : 0x7fU,
            .value = static_cast<float>(kNan),
            .way = Scale::Way::all_nan};
  }
  if (small) return e4m3_scale(format, static_cast<float>(amax), factor);
  if (amax == 0) return {.byte = format.zero_block, .value = 1, .way = Scale::Way::divide, .by = 1};
  if (format.rule != ScaleRule::exact) return power_scale(format, amax);
  const float scale = exact(amax, largest(format.data));
  return {.value = scale, .way = Scale::Way::divide, .by = scale};
}

unsigned code_of(const QuantFormat& format, DType dtype, float value, const Scale& scale) {
  const auto quotient = static_cast<float>(double{value} / double{scale.by});
  switch (scale.way) {
    case Scale::Way::all_nan: return nearest_code(format.data, kNan);
    case Scale::Way::divide:
      return nearest_code(format.data, is_integer(format.data) ? as(dtype, quotient) : quotient);
    case Scale::Way::multiply: break;
  }
  return nearest_code(format.data, static_cast<float>(double{value} * double{scale.by}));
}

void put_code(const QuantFormat& format, QuantBytes& bytes, Index element, unsigned code) {
  if (bits(format.data) == 4) {
    std::byte& at = bytes.data[static_cast<std::size_t>(element / 2)];
    at |= static_cast<std::byte>(code << (element % 2 * 4));
  } else {
    bytes.data[static_cast<std::size_t>(element)] = static_cast<std::byte>(code);
  }
}

unsigned code_at(const QuantFormat& format, const QuantBytes& bytes, Index element) {
  if (bits(format.data) == 8)
    return std::to_integer<unsigned>(bytes.data[static_cast<std::size_t>(element)]);
  return std::to_integer<unsigned>(bytes.data[static_cast<std::size_t>(element / 2)]) >>
             (element % 2 * 4) &
         0xfU;
}

float matrix_factor(const QuantFormat& format, const std::vector<float>& values) {
  double amax = 0;
  for (const float v : values)
    amax = std::isnan(v) || std::isnan(amax) ? kNan : std::max(amax, std::abs(double{v}));
  if (std::isnan(amax)) return static_cast<float>(kNan);
  return exact(amax, 448 * largest(format.data));
}

/// Calls f(row, col) for the elements of a block.
template <class F>
void each_element(const QuantFormat& format, Index rows, Index cols, Index i, Index j, F f) {
  const Index down = format.block_rows == 0 ? rows : format.block_rows;
  const Index across = format.block_cols == 0 ? cols : format.block_cols;
  for (Index r = i * down; r < std::min((i + 1) * down, rows); ++r)
    for (Index c = j * across; c < std::min((j + 1) * across, cols); ++c) f(r, c);
}

}  // namespace

bool operator==(const QuantBytes& a, const QuantBytes& b) {
  return a.data == b.data && a.scales == b.scales &&
         std::bit_cast<std::uint32_t>(a.factor) == std::bit_cast<std::uint32_t>(b.factor);
}

QuantMatrix view(const QuantFormat& format, Index rows, Index cols, QuantBytes& bytes) {
  return {.format = format,
          .data = bytes.data.data(),
          .rows = rows,
          .cols = cols,
          .row_bytes = size_of(format.data, cols),
          .scales = bytes.scales.data(),
          .scale_row_bytes = size_of(format.scale, scale_cols(format, cols)),
          .factor = reinterpret_cast<std::byte*>(&bytes.factor)};
}

QuantBytes quant_bytes(const QuantFormat& format, Index rows, Index cols, std::byte fill) {
  const Index bytes = rows * size_of(format.data, cols);
  return {.data = std::vector(static_cast<std::size_t>(bytes), fill),
          .scales = std::vector(static_cast<std::size_t>(scale_bytes(format, rows, cols)), fill),
          .factor = 0};
}

double value_of_code(DType dtype, unsigned code) {
  if (dtype == DType::i4) return static_cast<int>(code) - 8;
  if (dtype == DType::u8) return static_cast<int>(code) - 128;
  if (dtype == DType::i8) return static_cast<std::int8_t>(code);
  if (dtype == DType::f8_e8m0)
    return code == 255 ? kNan : std::ldexp(1.0, static_cast<int>(code) - 127);
  const bool f4 = dtype == DType::f4;
  const int mantissa_bits = f4 ? 1 : 3, bias = f4 ? 1 : 7, sign_bit = f4 ? 3 : 7;
  const double sign = (code >> sign_bit & 1U) != 0 ? -1 : 1;
  const unsigned magnitude = code & ((1U << sign_bit) - 1);
  if (!f4 && magnitude == 0x7f) return kNan;
  const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double fraction = std::ldexp(magnitude & ((1U << mantissa_bits) - 1), -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

unsigned nearest_code(DType dtype, double value) {
  if (is_integer(dtype)) {
    const int middle = dtype == DType::i4 ? 8 : 128;
    const double inside = std::isnan(value) ? 0 : std::clamp<double>(value, -middle, middle - 1);
    const int number = static_cast<int>(std::nearbyint(inside));
    return static_cast<unsigned>(dtype == DType::i8 ? number & 0xff : number + middle);
  }
  const unsigned sign_code = dtype == DType::f4 ? 8 : 0x80;
  const unsigned sign = std::signbit(value) ? sign_code : 0;
  if (std::isnan(value)) return dtype == DType::f4 ? 7 : sign | 0x7f;
  const double magnitude = std::min(std::abs(value), largest(dtype));
  const std::vector<double>& values = positive_values(dtype);
  unsigned best = 0;
  for (unsigned code = 1; code < values.size(); ++code) {
    const double here = std::abs(values[code] - magnitude);
    const double there = std::abs(values[best] - magnitude);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return sign | best;
}

std::size_t reference_scale_place(const QuantFormat& format, Index cols, Index row, Index col) {
  const Index across = scale_cols(format, cols);
  Index place = (row * across + col) * bits(format.scale) / 8;
  if (format.order == ScaleOrder::swizzled) {
    const Index tiles = (across + 3) / 4;
    place = (row / 128 * tiles + col / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col % 4;
  }
  return static_cast<std::size_t>(place);
}

QuantBytes reference_quantise(const QuantFormat& format, DType dtype, Index rows, Index cols,
                              const std::vector<float>& values) {
  QuantBytes bytes = quant_bytes(format, rows, cols, std::byte{0});
  if (format.tensor_factor) bytes.factor = matrix_factor(format, values);
  for (Index i = 0; i < scale_rows(format, rows); ++i) {
    for (Index j = 0; j < scale_cols(format, cols); ++j) {
      double amax = 0;
      each_element(format, rows, cols, i, j, [&](Index r, Index c) {
        const double v = std::abs(values[static_cast<std::size_t>(r * cols + c)]);
        amax = std::isnan(v) || std::isnan(amax) ? kNan : std::max(amax, v);
      });
      const Scale scale = scale_of(format, amax, format.tensor_factor ? bytes.factor : 1);
      std::byte* const at = &bytes.scales[reference_scale_place(format, cols, i, j)];
      if (format.scale == DType::f32) {
        std::memcpy(at, &scale.value, sizeof scale.value);
      } else if (bits(format.scale) == 16) {
        const bool bf16 = format.scale == DType::bf16;
        const std::uint16_t half = bf16 ? to_bf16(scale.value) : to_f16(scale.value);
        std::memcpy(at, &half, sizeof half);
      } else {
        *at = static_cast<std::byte>(scale.byte);
      }
      each_element(format, rows, cols, i, j, [&](Index r, Index c) {
        const Index element = r * cols + c;
        put_code(format, bytes, element,
                 code_of(format, dtype, values[static_cast<std::size_t>(element)], scale));
      });
    }
  }
  return bytes;
}

std::vector<float> reference_dequantise(const QuantFormat& format, Index rows, Index cols,
                                        const QuantBytes& bytes) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (Index i = 0; i < scale_rows(format, rows); ++i) {
    for (Index j = 0; j < scale_cols(format, cols); ++j) {
      const std::byte* const at = &bytes.scales[reference_scale_place(format, cols, i, j)];
      float scale = 0;
      if (format.scale == DType::f32) {
        std::memcpy(&scale, at, sizeof scale);
      } else if (bits(format.scale) == 16) {
        std::uint16_t half = 0;
        std::memcpy(&half, at, sizeof half);
        scale = format.scale == DType::bf16 ? from_bf16(half) : from_f16(half);
      } else {
        scale = static_cast<float>(value_of_code(format.scale, std::to_integer<unsigned>(*at)));
      }
      if (format.tensor_factor) scale *= bytes.factor;
      each_element(format, rows, cols, i, j, [&](Index r, Index c) {
        const Index element = r * cols + c;
        const double code = value_of_code(format.data, code_at(format, bytes, element));
        values[static_cast<std::size_t>(element)] = static_cast<float>(code * double{scale});
      });
    }
  }
  return values;
}

}  // namespace reshard
