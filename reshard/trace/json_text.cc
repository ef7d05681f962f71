// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/json_text.h"

#include <fmt/format.h>

#include <cstdint>

namespace reshard::trace {
namespace {

struct Character {
  std::uint32_t code = 0xfffd;
  std::size_t bytes = 1;
};

/// The first character of a text that does not begin with ASCII.
Character decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t n = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || n > text.size()) return {};
  std::uint32_t code = byte(0) & (0x7fU >> n);
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, n};
}

void append_escape(std::string& out, std::uint32_t unit) { out += fmt::format("\\u{:04x}", unit); }

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') out += '\\';
    if (c >= 0x20 && c < 0x7f) {
      out += text[i++];
      continue;
    }
    const Character next = c < 0x80 ? Character{c, 1} : decode(text.substr(i));
    if (next.code >= 0x10000) {
      append_escape(out, 0xd800 + ((next.code - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((next.code - 0x10000) & 0x3ff));
    } else {
      append_escape(out, next.code);
    }
    i += next.bytes;
  }
  out += '"';
}

}  // namespace reshard::trace
