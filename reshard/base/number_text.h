// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reshard/base/result.h"

/// Numbers as people read and write them.
namespace reshard {

/// "1.23 GB": decimal units, three digits. Bytes below 1000 are exact.
std::string human_bytes(std::int64_t bytes);
/// "235 B", "8.03 B", "1.20 M": the usual way to give model sizes.
std::string human_count(std::int64_t count);
/// "12.3 ms", "1.20 s", "2 min 5 s"
std::string human_seconds(double seconds);
/// "1,234,567"
std::string grouped(std::int64_t number);
/// "1.02x", or "-" when `whole` is zero.
std::string ratio(std::int64_t part, std::int64_t whole);
/// "12.34 GB/s", or "-" when `seconds` is not positive.
std::string rate(std::int64_t bytes, double seconds);
/// "1 rank", "3 ranks": `singular` with an s unless n is 1.
std::string plural(std::int64_t n, std::string_view singular);

/// Parses a number of bytes: "65536", "64MiB", "5GB", "1.5 GiB". SI and binary units; no unit means
/// bytes. Errors: another form; less than 1; more than 2^62.
Result<std::int64_t> parse_bytes(std::string_view text);

}  // namespace reshard
