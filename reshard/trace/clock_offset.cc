// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/clock_offset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace reshard::trace {
namespace {

constexpr std::size_t kRounds = 16;
constexpr std::int64_t kMaxTime = std::int64_t{1} << 61;
using Rounds = std::array<ClockRound, kRounds>;

bool is_time(std::int64_t ns) { return ns >= -kMaxTime && ns <= kMaxTime; }

Result<Rounds> decode(std::span<const std::byte> bytes, std::size_t rank) {
  Rounds rounds;
  if (bytes.size() != sizeof rounds)
    return fail(Code::corrupt, fmt::format("the clock of rank {}: {} bytes, expected {}", rank,
                                           bytes.size(), sizeof rounds));
  std::memcpy(rounds.data(), bytes.data(), sizeof rounds);
  for (const ClockRound& round : rounds)
    if (!is_time(round.called_ns) || !is_time(round.returned_ns))
      return fail(Code::corrupt, fmt::format("the clock of rank {}: a time out of range", rank));
  return rounds;
}

}  // namespace

ClockOffset clock_offset(std::span<const ClockRound> rank_0, std::span<const ClockRound> other) {
  const std::size_t n = std::min(rank_0.size(), other.size());
  if (n == 0) return {};
  std::int64_t least = rank_0[0].called_ns - other[0].returned_ns;
  std::int64_t most = rank_0[0].returned_ns - other[0].called_ns;
  for (std::size_t i = 1; i < n; ++i) {
    least = std::max(least, rank_0[i].called_ns - other[i].returned_ns);
    most = std::min(most, rank_0[i].returned_ns - other[i].called_ns);
  }
  // Only clocks that drift within the rounds cross over.
  const std::int64_t width = most > least ? most - least : least - most;
  return {std::min(least, most) + width / 2, (width + 1) / 2};
}

Result<std::vector<ClockOffset>> align_clocks(ControlPlane& control, Deadline deadline,
                                              const std::function<std::int64_t()>& clock) {
  Rounds mine;
  for (ClockRound& round : mine) {
    round.called_ns = clock();
    RESHARD_TRY(control.barrier(deadline));
    round.returned_ns = clock();
  }
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(mine)), deadline));
  std::vector<Rounds> rounds;
  for (std::size_t r = 0; r < all.size(); ++r) rounds.push_back(RESHARD_TRY(decode(all[r], r)));
  std::vector<ClockOffset> offsets;
  for (const Rounds& of_rank : rounds) offsets.push_back(clock_offset(rounds[0], of_rank));
  offsets[0] = {};
  return offsets;
}

}  // namespace reshard::trace
