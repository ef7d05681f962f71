// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/sharding/rank_set.h"

/// Numbers as people read and write them.
namespace reshard::cli {

/// "1.23 GB": decimal units, three digits. Bytes below 1000 are exact.
std::string human_bytes(Index bytes);
/// "235 B", "8.03 B", "1.20 M": how model sizes are spoken of.
std::string human_count(Index count);
/// "12.3 ms", "1.20 s", "2 min 5 s"
std::string human_seconds(double seconds);
/// "1,234,567"
std::string grouped(Index number);
/// "1.02x", or "-" when `whole` is zero.
std::string ratio(Index part, Index whole);
/// "12.3 GB/s"
std::string rate(Index bytes, double seconds);
/// "1 rank", "3 ranks": `singular` with an s unless n is 1.
std::string plural(Index n, std::string_view singular);

/// Bytes of "65536", "64MiB", "5GB", "1.5 GiB": SI and binary units, no unit means bytes.
/// Errors: not of that form, less than 1, more than 2^62.
Result<Index> parse_bytes(std::string_view text);

}  // namespace reshard::cli
