// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/bytes.h"

#include <fmt/format.h>

namespace reshard {

void ByteWriter::number(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<std::byte>(value | 0x80));
  bytes_.push_back(static_cast<std::byte>(value));
}

void ByteWriter::raw(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), begin, begin + text.size());
}

void ByteReader::fail(const std::string& why) {
  if (ok()) error_ = fmt::format("{}: byte {}: {}", what_, at_, why);
}

std::uint64_t ByteReader::number(std::uint64_t most, const char* name) {
  std::uint64_t value = 0;
  for (int shift = 0; ok(); shift += 7) {
    if (at_ == bytes_.size()) {
      fail(fmt::format("ends inside {}", name));
      break;
    }
    const auto byte = static_cast<std::uint64_t>(bytes_[at_]);
    if (shift == 63 && byte > 1) {
      fail(fmt::format("{} does not fit into 64 bits", name));
      break;
    }
    ++at_;
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) {
      if (value <= most) return value;
      fail(fmt::format("{} is {}, at most {} is allowed", name, value, most));
    }
  }
  return 0;
}

std::int64_t ByteReader::signed_number(std::int64_t least, std::int64_t most, const char* name) {
  const std::uint64_t zigzag = number(~std::uint64_t{0}, name);
  const auto value = static_cast<std::int64_t>(zigzag >> 1 ^ (~(zigzag & 1) + 1));
  if (value >= least && value <= most) return value;
  fail(fmt::format("{} is {}, must be from {} to {}", name, value, least, most));
  return 0;
}

std::size_t ByteReader::count(std::size_t entry_bytes, const char* name) {
  const std::uint64_t n = number(~std::uint64_t{0}, name);
  if (n <= left() / entry_bytes) return static_cast<std::size_t>(n);
  fail(fmt::format("{} is {}, at most {} is allowed", name, n, left() / entry_bytes));
  return 0;
}

std::string_view ByteReader::raw(std::size_t size, const char* name) {
  if (size > left()) fail(fmt::format("ends inside {}", name));
  if (!ok()) return {};
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
  at_ += size;
  return text;
}

Result<> ByteReader::finish() const {
  if (!ok()) return reshard::fail(Code::corrupt, error_);
  if (left() > 0)
    return reshard::fail(Code::corrupt, fmt::format("{}: {} bytes after the end", what_, left()));
  return {};
}

}  // namespace reshard
