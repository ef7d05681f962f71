// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/utf8.h"

#include <cstdint>

namespace reshard::files {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
}

/// The length of the character at `i` in bytes, or 0 if it is invalid (table 3-7 of the Unicode
/// standard).
std::size_t character_bytes(std::string_view text, std::size_t i) {
  const auto lead = byte_at(text, i), second = byte_at(text, i + 1);
  const auto in = [](std::uint8_t byte, int from, int to) { return byte >= from && byte <= to; };
  const auto more = [&](std::size_t k) { return in(byte_at(text, i + k), 0x80, 0xbf); };
  if (lead < 0x80) return 1;
  if (in(lead, 0xc2, 0xdf)) return more(1) ? 2 : 0;
  if (in(lead, 0xe0, 0xef)) {
    const int from = lead == 0xe0 ? 0xa0 : 0x80, to = lead == 0xed ? 0x9f : 0xbf;
    return in(second, from, to) && more(2) ? 3 : 0;
  }
  if (in(lead, 0xf0, 0xf4)) {
    const int from = lead == 0xf0 ? 0x90 : 0x80, to = lead == 0xf4 ? 0x8f : 0xbf;
    return in(second, from, to) && more(2) && more(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto n = character_bytes(text, i);
    if (n == 0) return i;
    i += n;
  }
  return std::nullopt;
}

std::string cut_utf8(std::string_view text, std::size_t bytes) {
  if (bytes >= text.size()) return std::string(text);
  while (bytes > 0 && (byte_at(text, bytes) & 0xc0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes));
}

}  // namespace reshard::files
