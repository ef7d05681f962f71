// SPDX-License-Identifier: Apache-2.0
// The order in which the ranks of an exchange pass their messages to NCCL, which matches operations
// between two ranks by order only and runs the groups of a rank one after another.
//
// In round r rank i sends to rank i + r and receives from rank i - r (mod n), in ascending order of
// id, `at_once` messages per direction in a group. So both sides of a message put it into the group
// with the same (round, number). This cannot deadlock: of the next groups of all ranks take one
// with the smallest (round, number); its peers are not behind it, and cannot have passed it without
// this rank. Groups are bounded because thousands of operations in one are known to deadlock in
// NCCL.
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
  std::size_t number = 0;  ///< of its group within the round.
};

/// The halves of one rank, ordered by group; a group has equal (round, number). Messages of zero
/// bytes are omitted, on both sides. @pre every peer is 0 to size - 1, at_once > 0
inline std::vector<Half> plan_rounds(Rank rank, int size, std::span<const Send> sends,
                                     std::span<const Recv> recvs, std::size_t at_once) {
  const auto distance = [size](Rank from, Rank to) {
    return (to.value() - from.value() + size) % size;
  };
  std::vector<Half> halves;
  for (const Send& s : sends) {
    if (s.bytes.empty()) continue;
    // One type serves both directions; a send only reads.
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

/// The first group of `halves`. @pre !halves.empty()
inline std::span<const Half> next_group(std::span<const Half> halves) {
  const auto end = std::ranges::find_if(halves, [&](const Half& h) {
    return h.round != halves[0].round || h.number != halves[0].number;
  });
  return halves.first(static_cast<std::size_t>(end - halves.begin()));
}

}  // namespace reshard::nccl
