// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/crc32.h"

#include <zlib.h>

namespace reshard::dcp {

std::uint32_t crc32(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const Bytef*>(bytes.data());
  return bytes.empty() ? 0 : static_cast<std::uint32_t>(::crc32_z(0, data, bytes.size()));
}

void PiecewiseCrc32::add(std::int64_t offset, std::span<const std::byte> piece) {
  if (piece.empty()) return;
  const Piece own{crc32(piece), static_cast<std::int64_t>(piece.size())};
  const std::lock_guard lock(mutex_);
  pieces_.emplace(offset, own);
}

std::uint32_t PiecewiseCrc32::value() const {
  const std::lock_guard lock(mutex_);
  uLong crc = 0;
  for (const auto& [offset, piece] : pieces_)
    crc = ::crc32_combine(crc, piece.crc, static_cast<z_off_t>(piece.bytes));
  return static_cast<std::uint32_t>(crc);
}

}  // namespace reshard::dcp
