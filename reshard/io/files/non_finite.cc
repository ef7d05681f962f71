// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/non_finite.h"

#include <algorithm>

namespace reshard::files {
namespace {

/// True for what may stand in a number or a word, so that tokens are not cut in the middle.
bool is_in_token(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.' || c == '_';
}

/// The byte after the string that begins at `i`, or the end of the text.
std::size_t end_of_string(std::string_view text, std::size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i)
    if (text[i] == '\\') ++i;
  return std::min(i + 1, text.size());
}

}  // namespace

std::vector<NonFinite> replace_non_finite(std::string_view text, std::string& copy) {
  std::vector<NonFinite> found;
  if (text.find("NaN") == text.npos && text.find("Infinity") == text.npos) return found;
  std::size_t strings = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = end_of_string(text, i);
      ++strings;
      continue;
    }
    const std::size_t begin = i;
    while (i < text.size() && is_in_token(text[i])) ++i;
    const std::string_view token = text.substr(begin, i - begin);
    if (token == "NaN" || token == "Infinity" || token == "-Infinity")
      found.push_back({strings++, begin, std::string(token)});
    if (token.empty()) ++i;
  }
  if (found.empty()) return found;
  copy = text;
  for (const NonFinite& number : found)
    copy[number.byte] = copy[number.byte + number.spelling.size() - 1] = '"';
  return found;
}

}  // namespace reshard::files
