// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "reshard/transform/kernels/fingerprint_kernels.h"

namespace reshard::kernels {
namespace {

/// Bytes [from, to) of a little-endian word, which begin at `p`; the others 0.
std::uint32_t word_of(const std::byte* p, std::size_t from, std::size_t to) {
  if (std::endian::native == std::endian::little && to - from == 4) {
    std::uint32_t whole = 0;
    std::memcpy(&whole, p, 4);
    return whole;
  }
  std::uint32_t word = 0;
  for (std::size_t i = from; i < to; ++i)
    word |= std::to_integer<std::uint32_t>(p[i - from]) << (8 * i);
  return word;
}

}  // namespace

void fingerprint_portable(const PartBlock& block, std::array<std::uint64_t, 2>& sum) {
  const ColumnTable& table = *block.table;
  const std::size_t lead = block.begin % 4, bytes = lead + block.bytes;
  for (std::size_t r = 0; r < block.rows; ++r) {
    const std::byte* const row = block.data + static_cast<std::ptrdiff_t>(r) * block.stride;
    std::array<std::uint64_t, 2> columns = block.ones;
    const auto add = [&](std::size_t at, std::uint32_t word) {
      for (std::size_t l = 0; l < 2; ++l)
        columns[l] += weighted(word, table.weight[l][block.begin / 4 + at / 4]);
    };
    std::size_t at = 0;
    if (lead > 0) {
      add(0, word_of(row, lead, std::min<std::size_t>(bytes, 4)));
      at = 4;
    }
    for (; at + 4 <= bytes; at += 4) add(at, word_of(row + at - lead, 0, 4));
    if (at < bytes) add(at, word_of(row + at - lead, 0, bytes - at));
    for (std::size_t l = 0; l < 2; ++l)
      sum[l] += columns[l] * part_weight(block.keys[l], block.first + r * block.step);
  }
}

}  // namespace reshard::kernels
