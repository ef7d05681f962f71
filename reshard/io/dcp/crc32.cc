// SPDX-License-Identifier: Apache-2.0
//
// The CRC of a text is its polynomial over GF(2), times x^32, modulo P, with the first 32 bits
// inverted before and the result inverted after. Without these inversions it is linear: the sum
// (XOR) over the pieces of each piece's own, times x^8 for each byte that follows it. Bits are
// reflected: bit 31 is the coefficient of x^0.
#include "reshard/io/dcp/crc32.h"

#include <array>

namespace reshard::dcp {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320, kOne = 0x80000000;
constexpr std::size_t kSlices = 8;
using CrcTables = std::array<std::array<std::uint32_t, 256>, kSlices>;

/// tables[k][b]: the remainder of byte b with k bytes of zeros behind it.
constexpr CrcTables make_tables() {
  CrcTables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1U) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < kSlices; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xffU];
  return tables;
}
constexpr CrcTables kTables = make_tables();

/// The remainder of `crc` times x^(8 * size) plus the bytes, eight at a time.
std::uint32_t remainder(std::uint32_t crc, std::span<const std::byte> bytes) {
  const auto at = [&](std::size_t i) { return std::to_integer<std::uint32_t>(bytes[i]); };
  std::size_t i = 0;
  for (; i + kSlices <= bytes.size(); i += kSlices) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < kSlices; ++k) {
      const std::uint32_t old = k < 4 ? crc >> (8 * k) & 0xffU : 0;
      next ^= kTables[kSlices - 1 - k][old ^ at(i + k)];
    }
    crc = next;
  }
  for (; i < bytes.size(); ++i) crc = crc >> 8 ^ kTables[0][(crc ^ at(i)) & 0xffU];
  return crc;
}

/// The product of two polynomials modulo P.
constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) out ^= b;
    b = b >> 1 ^ ((b & 1U) != 0 ? kPolynomial : 0);
  }
  return out;
}

/// `crc` times x^(8 * bytes).
std::uint32_t shifted(std::uint32_t crc, std::int64_t bytes) {
  std::uint32_t power = kOne >> 8;  // x^8
  for (auto n = static_cast<std::uint64_t>(bytes); n != 0; n >>= 1) {
    if ((n & 1U) != 0) crc = product(crc, power);
    power = product(power, power);
  }
  return crc;
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes) { return ~remainder(~0U, bytes); }

void PiecewiseCrc32::add(std::int64_t offset, std::span<const std::byte> piece) {
  const std::int64_t behind = bytes_ - offset - static_cast<std::int64_t>(piece.size());
  const std::uint32_t own = shifted(remainder(0, piece), behind);
  const std::lock_guard lock(mutex_);
  sum_ ^= own;
}

std::uint32_t PiecewiseCrc32::value() const {
  const std::lock_guard lock(mutex_);
  return ~(sum_ ^ shifted(~0U, bytes_));
}

}  // namespace reshard::dcp
