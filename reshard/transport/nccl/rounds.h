// SPDX-License-Identifier: Apache-2.0
// The order in which the ranks of one step give their messages to NCCL, which matches the
// operations between two ranks by their order alone, and runs the groups of a rank one after the
// other.
//
// In round r rank i sends to rank i + r and receives from rank i - r (mod n), in ascending order of
// id, `at_once` messages of each direction in a group. Both sides of a message so put it into the
// group with the same (round, number). No deadlock: of all ranks' next groups take the one with the
// smallest (round, number); its peers cannot be behind it, and cannot be beyond it without it.
// Thousands of operations in one group are known to deadlock inside NCCL, hence the bound.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

#include "reshard/transport/transport.h"

namespace reshard::nccl {

/// One side of one message.
struct Half {
  bool sending = false;
  Rank peer;
  MessageId id;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  int round = 0;
  std::size_t number = 0;  ///< of its group in the round.
};

/// The halves of one rank in the order of their groups: those with equal (round, number) are one.
/// Messages of zero bytes are left out, on both sides. @pre every peer is 0 to size - 1, at_once >
/// 0.
inline std::vector<Half> plan_rounds(Rank rank, int size, std::span<const Send> sends,
                                     std::span<const Recv> recvs, std::size_t at_once) {
  const auto distance = [size](Rank from, Rank to) {
    return (to.value() - from.value() + size) % size;
  };
  std::vector<Half> halves;
  for (const Send& s : sends) {
    if (s.bytes.empty()) continue;
    // NCCL takes what it only reads as const; one type serves both directions.
    halves.push_back({true, s.to, s.id, const_cast<std::byte*>(s.bytes.data()), s.bytes.size(),
                      distance(rank, s.to)});
  }
  for (const Recv& r : recvs)
    if (!r.bytes.empty())
      halves.push_back(
          {false, r.from, r.id, r.bytes.data(), r.bytes.size(), distance(r.from, rank)});
  std::ranges::sort(halves, {},
                    [](const Half& h) { return std::tuple(h.round, h.sending, h.id.value()); });
  std::size_t first = 0;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const bool same =
        halves[i].round == halves[first].round && halves[i].sending == halves[first].sending;
    if (!same) first = i;
    halves[i].number = (i - first) / at_once;
  }
  std::ranges::sort(halves, {}, [](const Half& h) {
    return std::tuple(h.round, h.number, h.sending, h.id.value());
  });
  return halves;
}

/// The group at the front of `halves`, which is not empty.
inline std::span<const Half> next_group(std::span<const Half> halves) {
  const auto end = std::ranges::find_if(halves, [&](const Half& h) {
    return h.round != halves[0].round || h.number != halves[0].number;
  });
  return halves.first(static_cast<std::size_t>(end - halves.begin()));
}

}  // namespace reshard::nccl
