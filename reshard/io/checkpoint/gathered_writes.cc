// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/gathered_writes.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "reshard/io/files/disk.h"

namespace reshard::checkpoint {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 20;
constexpr std::size_t kMaxBlocks = 16;
/// Pieces of this size and more are written by themselves: a copy of them costs more than a call.
constexpr std::size_t kLarge = std::size_t{64} << 10;

}  // namespace

Result<> GatheredWrites::write(std::span<const std::byte> data, std::int64_t offset) {
  if (data.size() >= kLarge) return files::write_all(fd_, path_, data, offset);
  while (!data.empty()) {
    const std::int64_t block = offset / kBlock, at = offset % kBlock;
    const auto piece = data.first(std::min(data.size(), static_cast<std::size_t>(kBlock - at)));
    const auto [number, content] = add(block, static_cast<std::size_t>(at), piece);
    RESHARD_TRY(write_block(number, content));
    data = data.subspan(piece.size());
    offset += static_cast<std::int64_t>(piece.size());
  }
  return {};
}

std::pair<std::int64_t, GatheredWrites::Block> GatheredWrites::add(
    std::int64_t number, std::size_t at, std::span<const std::byte> piece) {
  const std::lock_guard lock(mutex_);
  auto found = blocks_.find(number);
  if (found == blocks_.end()) {
    const auto size = static_cast<std::size_t>(std::min(kBlock, bytes_ - number * kBlock));
    found =
        blocks_.emplace(number, Block{std::make_unique_for_overwrite<std::byte[]>(size), {}, size})
            .first;
  }
  Block& block = found->second;
  std::memcpy(block.bytes.get() + at, piece.data(), piece.size());
  block.missing -= piece.size();
  Range added{at, at + piece.size()};
  auto after = std::ranges::lower_bound(block.filled, added.begin, {}, &Range::begin);
  if (after != block.filled.end() && after->begin == added.end) {
    added.end = after->end;
    after = block.filled.erase(after);
  }
  if (after != block.filled.begin() && std::prev(after)->end == added.begin)
    std::prev(after)->end = added.end;
  else
    block.filled.insert(after, added);
  // The first is the one that a reader in order left longest ago.
  if (block.missing > 0) {
    if (blocks_.size() <= kMaxBlocks) return {};
    found = blocks_.begin()->first == number ? std::next(blocks_.begin()) : blocks_.begin();
  }
  auto full = blocks_.extract(found);
  return {full.key(), std::move(full.mapped())};
}

Result<> GatheredWrites::write_block(std::int64_t number, const Block& content) const {
  for (const Range& range : content.filled)
    RESHARD_TRY(files::write_all(
        fd_, path_, std::span(content.bytes.get() + range.begin, range.end - range.begin),
        number * kBlock + static_cast<std::int64_t>(range.begin)));
  return {};
}

Result<> GatheredWrites::finish() {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, content] : std::exchange(blocks_, {}))
    RESHARD_TRY(write_block(number, content));
  return {};
}

}  // namespace reshard::checkpoint
