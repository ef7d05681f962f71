// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace reshard {
namespace {

/// Three digits and one of the units, each a thousand times the one before.
template <std::size_t N>
std::string scaled(std::int64_t value, const std::array<std::string_view, N>& units) {
  double v = static_cast<double>(value);
  std::size_t unit = 0;
  while (std::abs(v) >= 999.5 && unit + 1 < N) {
    v /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}{}", value, units[0]);
  const int digits = v < 9.995 ? 2 : v < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", v, digits, units[unit]);
}

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"kB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"KiB", 0x1p10},
                                          {"MiB", 0x1p20},
                                          {"GiB", 0x1p30},
                                          {"TiB", 0x1p40}}};

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 6> kNames = {" B", " kB", " MB", " GB", " TB", " PB"};
  return scaled(bytes, kNames);
}

std::string human_count(std::int64_t count) {
  constexpr std::array<std::string_view, 5> kNames = {"", " K", " M", " B", " T"};
  return scaled(count, kNames);
}

std::string human_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.01 ? 2 : 1);
  if (seconds < 100) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string grouped(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t at = digits.size(), begin = number < 0 ? 1 : 0; at > begin + 3;)
    digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string ratio(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.2f}x", static_cast<double>(part) / static_cast<double>(whole));
}

std::string rate(std::int64_t bytes, double seconds) {
  if (seconds <= 0) return "-";
  return fmt::format("{:.2f} GB/s", static_cast<double>(bytes) / seconds / 1e9);
}

std::string plural(std::int64_t n, std::string_view singular) {
  return fmt::format("{} {}{}", grouped(n), singular, n == 1 ? "" : "s");
}

Result<std::int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  auto rest = text.substr(static_cast<std::size_t>(stop - text.data()));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(),
                                 [&](const Unit& u) { return same_letters(u.name, rest); });
  const double bytes = unit == kUnits.end() ? 0 : number * unit->bytes;
  if (error != std::errc() || !(bytes >= 1) || bytes > 0x1p62)
    return fail(Code::invalid_argument,
                fmt::format("'{}' must be a number of bytes such as 64MiB or 5GB", text));
  return static_cast<std::int64_t>(bytes);
}

}  // namespace reshard
