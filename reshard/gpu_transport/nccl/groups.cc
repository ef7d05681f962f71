// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/groups.h"

#include <algorithm>
#include <tuple>

namespace reshard::nccl {
namespace {

/// How many messages of a group go to, or come from, each peer. There are few peers.
class Epochs {
 public:
  /// Counts a message. Returns how many with the same peer and direction precede it; -1 if there
  /// are `peers` others in this direction already.
  int add(const Half& h, int peers) {
    int& used = used_[h.sending];
    auto& row = rows_[h.sending];
    for (int i = 0; i < used; ++i)
      if (row[static_cast<std::size_t>(i)].peer == h.peer)
        return row[static_cast<std::size_t>(i)].messages++;
    if (used == std::min(peers, kMostPeers)) return -1;
    row[static_cast<std::size_t>(used++)] = {h.peer, 1};
    return 0;
  }

 private:
  static constexpr int kMostPeers = 64;
  struct Row {
    Rank peer;
    int messages = 0;
  };
  std::array<std::array<Row, kMostPeers>, 2> rows_;
  std::array<int, 2> used_{};
};

}  // namespace

void append_halves(Rank me, int size, std::span<Message> messages, std::uint64_t step,
                   std::size_t segment_bytes, Lanes& lanes) {
  const auto distance = [&](const Message& m) {
    const int d = m.sending ? m.peer.value() - me.value() : me.value() - m.peer.value();
    return (d + size) % size;
  };
  std::ranges::stable_sort(
      messages, {}, [&](const Message& m) { return std::tuple(m.turn, distance(m), !m.sending); });
  for (const Message& m : messages) {
    auto& lane = lanes[m.sending ? lane_of(me, m.peer) : lane_of(m.peer, me)];
    for (std::size_t at = 0; at < m.size; at += segment_bytes)
      lane.push_back({m.sending, m.on_host, m.peer, m.id, m.bytes + at,
                      std::min(segment_bytes, m.size - at), step});
  }
}

std::size_t next_group(const std::deque<Half>& lane, const std::vector<bool>& connected,
                       const GroupLimits& limits) {
  Epochs epochs;
  std::array<int, 2> messages{};
  std::size_t bytes = 0, host_bytes = 0, n = 0;
  int last_epoch = 0;
  for (const Half& h : lane) {
    const bool is_new = !connected[h.peer.index()];
    bytes += h.size;
    host_bytes += h.on_host ? h.size : 0;
    const int epoch = epochs.add(h, limits.peers);
    const bool fits = epoch >= last_epoch && ++messages[h.sending] <= limits.messages &&
                      bytes <= limits.bytes && host_bytes <= limits.host_bytes;
    if (n > 0 && (is_new || !fits)) return n;
    ++n;
    if (is_new) return n;
    last_epoch = epoch;
  }
  return n;
}

}  // namespace reshard::nccl
