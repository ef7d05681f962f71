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

/// Serialises numbers and texts. Numbers are LEB128: seven bits per byte, lowest first.
class ByteWriter {
 public:
  void number(std::uint64_t value);
  /// Zigzag encoding: numbers of small magnitude take few bytes.
  void signed_number(std::int64_t value) {
    number(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  /// Appends the characters without a length.
  void raw(std::string_view text);
  void text(std::string_view text) {
    number(text.size());
    raw(text);
  }
  std::vector<std::byte> finish() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads the output of a ByteWriter from untrusted bytes. After the first error all reads return
/// zero; finish() reports it.
class ByteReader {
 public:
  /// Borrows the bytes. `what` begins every error message.
  ByteReader(std::span<const std::byte> bytes, std::string what)
      : bytes_(bytes), what_(std::move(what)) {}

  /// Reads a number of at most `most`. `name` is for error messages.
  std::uint64_t number(std::uint64_t most, const char* name);
  /// Reads a number from `least` to `most`. @pre least <= 0 <= most
  std::int64_t signed_number(std::int64_t least, std::int64_t most, const char* name);
  /// Reads the number of entries that follow, and checks that the rest has at least `entry_bytes`
  /// bytes for each.
  std::size_t count(std::size_t entry_bytes, const char* name);
  /// Reads `size` characters. Borrowed from the bytes.
  std::string_view raw(std::size_t size, const char* name);
  std::string_view text(std::size_t most, const char* name) {
    return raw(static_cast<std::size_t>(number(most, name)), name);
  }
  /// Records an error at the current byte, unless there is one already.
  void fail(const std::string& why);
  bool ok() const { return error_.empty(); }
  std::size_t left() const { return bytes_.size() - at_; }
  /// Errors: `corrupt`: the first error, or unread bytes.
  Result<> finish() const;

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::string what_, error_;
};

}  // namespace reshard
