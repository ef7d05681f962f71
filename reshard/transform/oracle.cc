// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "reshard/base/hash.h"
#include "reshard/transform/box_rows.h"

namespace reshard {
namespace {

/// Bits of an element that stay random, and bits that are set: `(random & keep) | set`.
struct Pattern {
  std::uint64_t keep = ~0ULL, set = 0;
};

/// Floats keep sign, mantissa and the lowest two bits of the exponent; its other bits are those of
/// 2^-11.
Pattern pattern_of(OracleKind kind, DType dtype) {
  if (kind == OracleKind::bits) return {};
  switch (dtype) {
    case DType::boolean: return {0x01, 0};
    case DType::f16: return {0x8fff, 0x1000};
    case DType::bf16: return {0x81ff, 0x3a00};
    case DType::f32:
    case DType::c64: return {0x81ffffff, 0x3a000000};
    case DType::f64: return {0x803fffffffffffff, 0x3f40000000000000};
    // No exponent above that of 1, and never 0, which with a sign is the NaN of the fnuz types.
    case DType::f8_e5m2:
    case DType::f8_e4m3:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz: return {0xbf, 0x10};
    case DType::f8_e8m0: return {0x03, 0x74};
    default: return {};
  }
}

/// The period of a dtype's pattern in bits.
int period(DType dtype) { return dtype == DType::c64 ? 32 : bits(dtype); }

/// The pattern repeated through a 64-bit word. Elements of 4 and 6 bits have none.
Pattern repeated(Pattern p, int width) {
  if (p.set == 0 && p.keep == ~0ULL) return p;
  for (; width < 64; width *= 2) {
    p.keep |= p.keep << width;
    p.set |= p.set << width;
  }
  return p;
}

/// Generates the bytes of one tensor.
class Stream {
 public:
  Stream(const Oracle& oracle, std::string_view name, DType dtype)
      : key_(mix64(hash64(name) ^ mix64(oracle.seed))),
        pattern_(repeated(pattern_of(oracle.kind, dtype), period(dtype))) {}

  /// Writes bytes [begin, begin + n) of the packed tensor to `out`.
  void write(Index begin, Index n, std::byte* out) const {
    const Index head = std::min(n, (8 - begin % 8) % 8);
    if (head > 0) write_part(begin, head, out);
    Index at = head;
    std::uint64_t word = static_cast<std::uint64_t>((begin + at) / 8);
    for (; at + 8 <= n; at += 8) {
      const std::uint64_t value = word_at(word++);
      std::memcpy(out + at, &value, 8);
    }
    if (at < n) write_part(begin + at, n - at, out + at);
  }

 private:
  std::uint64_t word_at(std::uint64_t index) const {
    const std::uint64_t value = (mix64(key_ + index) & pattern_.keep) | pattern_.set;
    return std::endian::native == std::endian::little ? value : __builtin_bswap64(value);
  }

  /// Writes some bytes of one word.
  void write_part(Index begin, Index n, std::byte* out) const {
    const std::uint64_t value = word_at(static_cast<std::uint64_t>(begin / 8));
    std::byte bytes[8];
    std::memcpy(bytes, &value, 8);
    std::memcpy(out, bytes + begin % 8, static_cast<std::size_t>(n));
  }

  std::uint64_t key_;
  Pattern pattern_;
};

std::uint64_t read_bits(const std::byte* p, Index bytes) {
  std::uint64_t value = 0;
  for (Index i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(p[i]) << (8 * i);
  return value;
}

/// The mismatch of the element that contains byte `column` of `row`.
OracleMismatch mismatch_at(const ByteMatrix& matrix, const Stream& stream, Index row, Index column,
                           const std::byte* byte) {
  const Index element = std::max(matrix.bits / 8, 1);
  const Index into = column % element;
  std::array<std::byte, 8> want{};
  stream.write(row * matrix.row_bytes + column - into, element, want.data());
  OracleMismatch m{.index = Dims::filled(matrix.shape.size(), 0),
                   .want = read_bits(want.data(), element),
                   .got = read_bits(byte - into, element)};
  if (matrix.shape.size() == 0) return m;
  const int last = matrix.shape.size() - 1;
  m.index[last] = column * 8 / matrix.bits;
  for (int i = last - 1; i >= 0; --i) {
    m.index[i] = row % matrix.shape[i];
    row /= matrix.shape[i];
  }
  return m;
}

/// Compares one row in pieces that fit in the L1 cache. @return the offset of the first wrong byte,
/// or -1
Index first_difference(const Stream& stream, Index begin, Index bytes, const std::byte* data) {
  constexpr Index kPiece = 4096;
  std::array<std::byte, kPiece> want;
  for (Index at = 0; at < bytes; at += kPiece) {
    const Index n = std::min(kPiece, bytes - at);
    stream.write(begin + at, n, want.data());
    if (std::memcmp(want.data(), data + at, static_cast<std::size_t>(n)) == 0) continue;
    return at + (std::mismatch(want.begin(), want.begin() + n, data + at).first - want.begin());
  }
  return -1;
}

/// True if mismatch a comes before b in row-major order.
bool comes_before(const OracleMismatch& a, const OracleMismatch& b) {
  return std::lexicographical_compare(a.index.begin(), a.index.end(), b.index.begin(),
                                      b.index.end());
}

}  // namespace

Result<> oracle_fill(const Oracle& oracle, std::string_view name, const Dims& shape, DType dtype,
                     const Box& box, const Strided& where, std::byte* data) {
  const ByteMatrix matrix = RESHARD_TRY(ByteMatrix::make(shape, dtype));
  const Stream stream(oracle, name, dtype);
  return for_each_row_block(matrix, box, where, data, Access::write, [&](const RowBlock& block) {
    for (Index r = 0; r < block.rows; ++r)
      stream.write((block.first + r) * matrix.row_bytes + block.begin, block.bytes,
                   block.data + r * block.stride);
    return true;
  });
}

std::string to_string(const OracleMismatch& mismatch) {
  return fmt::format("element {}: want {:#x}, got {:#x}", to_string(mismatch.index), mismatch.want,
                     mismatch.got);
}

Result<std::optional<OracleMismatch>> oracle_check(const Oracle& oracle, std::string_view name,
                                                   const Dims& shape, DType dtype, const Box& box,
                                                   const Strided& where, const std::byte* data) {
  const ByteMatrix matrix = RESHARD_TRY(ByteMatrix::make(shape, dtype));
  const Stream stream(oracle, name, dtype);
  std::optional<OracleMismatch> first;
  Index first_block_row = 0;
  // Access::read: the blocks are only read.
  RESHARD_TRY(for_each_row_block(
      matrix, box, where, const_cast<std::byte*>(data), Access::read, [&](const RowBlock& block) {
        if (first && block.first != first_block_row) return false;
        for (Index r = 0; r < block.rows; ++r) {
          const std::byte* const row = block.data + r * block.stride;
          const Index at = first_difference(
              stream, (block.first + r) * matrix.row_bytes + block.begin, block.bytes, row);
          if (at < 0) continue;
          const auto found =
              mismatch_at(matrix, stream, block.first + r, block.begin + at, row + at);
          if (!first || comes_before(found, *first)) first = found;
          first_block_row = block.first;
          break;
        }
        return true;
      }));
  return first;
}

}  // namespace reshard
