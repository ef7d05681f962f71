// SPDX-License-Identifier: Apache-2.0
#include "bench/common/json_line.h"

#include <fmt/format.h>

#include <cstdio>

namespace reshard::bench {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

void JsonLine::key(std::string_view name) {
  text_ += fmt::format("{}{}: ", text_.empty() ? "" : ", ", quoted(name));
}

void JsonLine::add(std::string_view name, std::string_view value) {
  key(name);
  text_ += quoted(value);
}

void JsonLine::add(std::string_view name, Index value) {
  key(name);
  text_ += fmt::format("{}", value);
}

void JsonLine::add(std::string_view name, double value) {
  key(name);
  text_ += fmt::format("{:.9g}", value);
}

void JsonLine::add(std::string_view name, const std::vector<double>& values) {
  key(name);
  text_ += fmt::format("[{:.9g}]", fmt::join(values, ", "));
}

void JsonLine::add(std::string_view name, const std::vector<Index>& values) {
  key(name);
  text_ += fmt::format("[{}]", fmt::join(values, ", "));
}

void JsonLine::print() const {
  std::printf("{%s}\n", text_.c_str());
  std::fflush(stdout);
}

}  // namespace reshard::bench
