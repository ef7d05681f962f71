// SPDX-License-Identifier: Apache-2.0
// Argument checks and error messages that several transports and control planes share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "reshard/transport/transport.h"

namespace reshard {

/// Errors: `invalid_argument`, naming both, if a group of `size` ranks has no rank `peer`. `what`
/// begins the message, as in "send to".
Result<> check_member(std::string_view what, Rank peer, int size);

/// Errors: `invalid_argument` for the first piece whose owner is not in a group of `size` ranks, or
/// that is not inside its owner's memory.
Result<> check_gets(std::span<const Get> pieces, int size);

/// The errors of ControlPlane::all_gather_into() for an output of `output_bytes`, and for a rank
/// that gives a different number of bytes than this one.
Error wrong_output_size(std::size_t output_bytes, std::size_t ranks, std::size_t bytes);
Error unequal_part(std::size_t rank, std::size_t bytes, std::size_t mine);

/// Lists the ranks below `size` for which `in(index)` is true: "rank 3", "ranks 1, 3", or, for more
/// than 16, "ranks 0, 1, ... and 984 more"; "no rank" if there are none.
template <class Predicate>
std::string list_ranks(std::size_t size, Predicate in) {
  constexpr std::size_t kNamed = 16;
  std::string list;
  std::size_t n = 0;
  for (std::size_t r = 0; r < size; ++r) {
    if (!in(r)) continue;
    if (n < kNamed) list += (n == 0 ? "" : ", ") + std::to_string(r);
    ++n;
  }
  if (n == 0) return "no rank";
  if (n > kNamed) list += " and " + std::to_string(n - kNamed) + " more";
  return (n == 1 ? "rank " : "ranks ") + list;
}

}  // namespace reshard
