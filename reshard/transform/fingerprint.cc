// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/fingerprint.h"

#include <algorithm>

#include "reshard/base/hash.h"
#include "reshard/transform/fingerprint_key.h"
#include "reshard/transform/kernels/fingerprint_kernels.h"
#include "reshard/transform/simd.h"

namespace reshard {
namespace kernels {
namespace {

ColumnTable build_column_table() {
  ColumnTable table{};
  for (std::size_t l = 0; l < 2; ++l) {
    for (std::size_t w = 0; w < kPartWords; ++w) {
      table.weight[l][w] = word_weight(l, w);
      table.before[l][w + 1] = table.before[l][w] + table.weight[l][w];
    }
  }
  return table;
}

}  // namespace

const ColumnTable& column_table() {
  static const ColumnTable table = build_column_table();
  return table;
}

}  // namespace kernels

namespace {

using kernels::PartBlock;

kernels::FingerprintKernel kernel() {
  switch (simd_level()) {
    case SimdLevel::avx512: return kernels::fingerprint_avx512;
    case SimdLevel::avx2: return kernels::fingerprint_avx2;
    case SimdLevel::neon: return kernels::fingerprint_neon;
    case SimdLevel::portable: break;
  }
  return kernels::fingerprint_portable;
}

/// Sum over the bytes before `byte` of B_l[p / 4] * 2^(8 (p mod 4)).
std::uint64_t ones_before(const kernels::ColumnTable& table, std::size_t lane, std::size_t byte) {
  constexpr std::uint64_t kOnes = 0x01010101;
  const std::uint64_t in_word = kOnes & ((1ULL << (8 * (byte % 4))) - 1);
  return table.before[lane][byte / 4] * kOnes + table.weight[lane][byte / 4] * in_word;
}

}  // namespace

std::array<std::uint64_t, 2> fingerprint_ones(std::size_t begin, std::size_t end) {
  const kernels::ColumnTable& table = kernels::column_table();
  std::array<std::uint64_t, 2> out{};
  for (std::size_t l = 0; l < 2; ++l)
    out[l] = ones_before(table, l, end) - ones_before(table, l, begin);
  return out;
}

namespace {

/// Adds blocks of one tensor to a fingerprint.
class Adder {
 public:
  Adder(const FingerprintKey& key, Fingerprint& total) : key_(key), total_(total) {}

  /// Cuts the block's rows at part boundaries.
  void add(const RowBlock& block) {
    const auto begin = static_cast<std::size_t>(block.begin);
    const std::size_t end = begin + static_cast<std::size_t>(block.bytes);
    if (begin / kPartBytes == (end - 1) / kPartBytes) {
      add_parts(block.data, block.stride, block.rows, block.first, begin, end,
                static_cast<std::uint64_t>(key_.parts()));
      return;
    }
    for (Index r = 0; r < block.rows; ++r)
      add_long_row(block.data + r * block.stride, block.first + r, begin, end);
  }

 private:
  /// Adds a row that spans several parts; whole parts in one call.
  void add_long_row(const std::byte* data, Index row, std::size_t begin, std::size_t end) {
    std::size_t at = begin;
    if (at % kPartBytes != 0) {
      at += kPartBytes - at % kPartBytes;
      add_parts(data, 0, 1, row, begin, at, 0);
    }
    const std::size_t whole = (end - at) / kPartBytes;
    if (whole > 0)
      add_parts(data + (at - begin), kPartBytes, static_cast<Index>(whole), row, at,
                at + kPartBytes, 1);
    at += whole * kPartBytes;
    if (at < end) add_parts(data + (at - begin), 0, 1, row, at, end, 0);
  }

  /// Adds columns [begin, end) of `row`, which lie in one part, and of the following parts at
  /// `step`.
  void add_parts(const std::byte* data, Index stride, Index rows, Index row, std::size_t begin,
                 std::size_t end, std::uint64_t step) {
    const PartBlock block{
        .table = &kernels::column_table(),
        .data = data,
        .stride = stride,
        .rows = static_cast<std::size_t>(rows),
        .begin = begin % kPartBytes,
        .bytes = end - begin,
        .first = static_cast<std::uint64_t>(row * key_.parts()) + begin / kPartBytes,
        .step = step,
        .keys = {key_.lane_key(0), key_.lane_key(1)},
        .ones = fingerprint_ones(begin % kPartBytes, begin % kPartBytes + end - begin)};
    kernel_(block, total_.lane);
  }

  const FingerprintKey& key_;
  Fingerprint& total_;
  kernels::FingerprintKernel kernel_ = kernel();
};

}  // namespace

std::string to_string(const Fingerprint& fingerprint) {
  return hex(fingerprint.lane[0]) + hex(fingerprint.lane[1]);
}

std::optional<Fingerprint> fingerprint_from_string(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Fingerprint f;
  for (std::size_t i = 0; i < 32; ++i) {
    const std::size_t digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    f.lane[i / 16] = f.lane[i / 16] << 4 | digit;
  }
  return f;
}

Result<FingerprintKey> FingerprintKey::make(std::string_view name, const Dims& shape, DType dtype) {
  FingerprintKey key;
  key.matrix_ = RESHARD_TRY(ByteMatrix::make(shape, dtype));
  key.parts_ =
      std::max<Index>((key.matrix_.row_bytes + Index{kPartBytes} - 1) / Index{kPartBytes}, 1);
  for (std::size_t l = 0; l < 2; ++l) {
    Digest digest;
    digest.add(std::string_view("reshard fingerprint 1"))
        .add(l)
        .add(name)
        .add(reshard::name(dtype));
    digest.add(shape.size());
    for (Index d : shape) digest.add(d);
    key.keys_[l] = digest.value();
  }
  return key;
}

Result<Fingerprint> fingerprint(const FingerprintKey& key, const Box& box, const Strided& where,
                                const std::byte* data) {
  Fingerprint total;
  Adder adder(key, total);
  // Access::read: the blocks are only read.
  RESHARD_TRY(for_each_row_block(key.matrix(), box, where, const_cast<std::byte*>(data),
                                 Access::read, [&](const RowBlock& block) {
                                   adder.add(block);
                                   return true;
                                 }));
  return total;
}

Result<Fingerprint> fingerprint(const FingerprintKey& key, const std::byte* data) {
  return fingerprint(key, Box::whole(key.shape()), {0, row_major(key.shape())}, data);
}

}  // namespace reshard
