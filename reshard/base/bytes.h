// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// Appends numbers and texts to bytes. Numbers are LEB128: seven bits per byte, the lowest first.
class ByteWriter {
 public:
  void number(std::uint64_t value);
  /// Small absolute values take few bytes (zigzag).
  void signed_number(std::int64_t value) {
    number(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  /// Just the characters.
  void raw(std::string_view text);
  void text(std::string_view text) {
    number(text.size());
    raw(text);
  }
  std::vector<std::byte> finish() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what a ByteWriter wrote, from bytes that anyone may have sent. The first error sticks and
/// makes every later call return zero; check() reports it.
class ByteReader {
 public:
  /// Borrowed. `what` begins every error.
  ByteReader(std::span<const std::byte> bytes, std::string what)
      : bytes_(bytes), what_(std::move(what)) {}

  /// A number of at most `most`.
  std::uint64_t number(std::uint64_t most, const char* name);
  /// A number from `least` to `most`. @pre least <= 0 <= most
  std::int64_t signed_number(std::int64_t least, std::int64_t most, const char* name);
  /// How many entries follow, each of at least `entry_bytes` bytes: no more than there are bytes
  /// for.
  std::size_t count(std::size_t entry_bytes, const char* name);
  /// `size` characters, borrowed.
  std::string_view raw(std::size_t size, const char* name);
  std::string_view text(std::size_t most, const char* name) {
    return raw(static_cast<std::size_t>(number(most, name)), name);
  }
  /// Notes an error at the current byte, unless there is one already.
  void fail(const std::string& why);
  bool ok() const { return error_.empty(); }
  std::size_t left() const { return bytes_.size() - at_; }
  /// The first error, or that there are bytes left. Code::corrupt.
  Result<> finish() const;

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::string what_, error_;
};

}  // namespace reshard
