// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/oracle.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"

namespace reshard {
namespace {

/// `lane` repeated over a word.
std::uint64_t lanes(std::uint64_t lane, int bits) {
  std::uint64_t word = 0;
  for (int at = 0; at < 64; at += bits) word |= lane << at;
  return word;
}

struct FloatFields {
  int exponent_bits, mantissa_bits;
};

std::optional<FloatFields> float_fields(DType dtype) {
  switch (dtype) {
    case DType::f16: return FloatFields{5, 10};
    case DType::bf16: return FloatFields{8, 7};
    case DType::f32: return FloatFields{8, 23};
    case DType::f64: return FloatFields{11, 52};
    case DType::f8_e5m2: return FloatFields{5, 2};
    case DType::f8_e4m3: return FloatFields{4, 3};
    default: return std::nullopt;
  }
}

std::string hex_bytes(const std::byte* bytes, int n) {
  std::string text = "0x";
  for (int i = n - 1; i >= 0; --i) {
    const auto b = std::to_integer<unsigned>(bytes[i]);
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

constexpr Index kPiece = 4096;  // bytes made at once for a check

}  // namespace

Oracle::Oracle(std::string_view name, const Dims& shape, DType dtype, std::uint64_t seed,
               OracleKind kind)
    : key_(hash64(name, seed)), bytes_(std::max(1, bits(dtype) / 8)), pack_(bits(dtype)) {
  Dims stored = shape;
  if (pack_ < 8 && stored.size() > 0)
    stored[stored.size() - 1] = stored[stored.size() - 1] * pack_ / 8;
  strides_ = row_major(stored);
  const auto fields = float_fields(dtype);
  if (kind != OracleKind::weights || !fields) return;
  // Two random bits choose among four exponents; four values of the bias-free exponent from -9 up
  // (e4m3: -6 up).
  const int width = bits(dtype), bias = (1 << (fields->exponent_bits - 1)) - 1;
  const std::uint64_t least = static_cast<std::uint64_t>(std::max(1, bias - 9));
  keep_ = lanes(std::uint64_t{1} << (width - 1) | ((std::uint64_t{1} << fields->mantissa_bits) - 1),
                width);
  vary_ = lanes(std::uint64_t{3} << fields->mantissa_bits, width);
  base_ = lanes(least << fields->mantissa_bits, width);
}

/// Elements [first, first + count) in row-major order of the whole tensor.
void Oracle::make(Index first, Index count, std::byte* out) const {
  const Index per_word = 8 / bytes_;
  const Index end = first + count;
  for (Index i = first; i < end;) {
    const std::uint64_t random = mix64(key_ + static_cast<std::uint64_t>(i / per_word));
    const std::uint64_t word =
        (random & keep_) | (keep_ == ~std::uint64_t{0} ? 0 : (random & vary_) + base_);
    const Index skip = i % per_word, n = std::min(per_word - skip, end - i);
    if (n == per_word) {
      std::memcpy(out, &word, 8);
    } else {
      const std::uint64_t part = word >> (8 * bytes_ * skip);
      std::memcpy(out, &part, static_cast<std::size_t>(n * bytes_));
    }
    out += n * bytes_;
    i += n;
  }
}

/// Calls f(first element, count, byte offset of the first, byte distance between two) for each run
/// along the last dimension; stops when f returns false.
template <class F>
void Oracle::for_each_run(const Box& box, const Strided& where, F&& f) const {
  if (box.empty()) return;
  const int last = box.rank() - 1;
  const bool packed = pack_ < 8;
  RESHARD_CHECK(!packed || last < 0 ||
                (where.strides[last] == 1 && box[last].begin() * pack_ % 8 == 0 &&
                 box[last].size() * pack_ % 8 == 0));
  const auto scaled = [&](Index elements) {
    return packed ? elements * pack_ / 8 : elements * bytes_;
  };
  const Index count = last < 0 ? 1 : packed ? scaled(box[last].size()) : box[last].size();
  const Index step = last < 0 || packed ? 1 * bytes_ : where.strides[last] * bytes_;
  const Index rows = last < 0 ? 1 : box.volume() / box[last].size();
  for (Index row = 0; row < rows; ++row) {
    Index rest = row, offset = where.offset;
    Index first = last < 0 ? 0 : packed ? scaled(box[last].begin()) : box[last].begin();
    for (int d = last - 1; d >= 0; --d) {
      const Index p = rest % box[d].size();
      rest /= box[d].size();
      first += (box[d].begin() + p) * strides_[d];
      offset += p * where.strides[d];
    }
    if (!f(first, count, scaled(offset), step)) return;
  }
}

void Oracle::fill(const Box& box, const Strided& where, std::byte* data) const {
  for_each_run(box, where, [&](Index first, Index count, Index offset, Index step) {
    if (step == bytes_) {
      make(first, count, data + offset);
    } else {
      for (Index i = 0; i < count; ++i) make(first + i, 1, data + offset + i * step);
    }
    return true;
  });
}

std::optional<std::string> Oracle::check(const Box& box, const Strided& where,
                                         const std::byte* data) const {
  std::optional<std::string> wrong;
  std::array<std::byte, kPiece> want;
  for_each_run(box, where, [&](Index first, Index count, Index offset, Index step) {
    for (Index at = 0; at < count && !wrong; at += kPiece / bytes_) {
      const Index n = std::min(kPiece / bytes_, count - at);
      make(first + at, n, want.data());
      const std::byte* have = data + offset + at * step;
      if (step == bytes_ &&
          std::memcmp(have, want.data(), static_cast<std::size_t>(n * bytes_)) == 0)
        continue;
      for (Index i = 0; i < n && !wrong; ++i) {
        if (std::memcmp(have + i * step, want.data() + i * bytes_,
                        static_cast<std::size_t>(bytes_)) == 0)
          continue;
        Dims index;
        Index rest = first + at + i;
        for (int d = 0; d < strides_.size(); ++d) {
          index.push_back(rest / strides_[d]);
          rest %= strides_[d];
        }
        wrong = to_string(index) + " is " + hex_bytes(have + i * step, bytes_) + ", not " +
                hex_bytes(want.data() + i * bytes_, bytes_);
      }
    }
    return !wrong;
  });
  return wrong;
}

}  // namespace reshard
