// SPDX-License-Identifier: Apache-2.0
// The order in which a rank gives its messages to NCCL, and the groups that it gives together.
//
// NCCL matches the messages between two ranks of a communicator by their order alone, and runs the
// groups of a rank one after another: a group is over when all its messages are. Within a group
// several messages to one peer run in order, as do all first messages of a group before all second
// ones (NCCL's epochs); otherwise messages to different peers progress independently. A message to
// a peer that is new to the communicator waits until all new peers of its group have arrived at
// theirs.
//
// The programs of ranks begin their exchanges in one order of all messages of the group (law 7 in
// program.h, MessageSteps). At one position of that order, a class, a rank has at most one message
// to send and one to receive, but these may be in two exchanges, and every rank cuts the order into
// exchanges of its own. So ranks that ran their exchanges one after another could wait for each
// other in a circle: each sends in its first exchange what the next receives in its second.
//
// Hence two lanes, each with a communicator of its own: messages to higher ranks go up, messages to
// lower ranks go down. A lane gives its messages in order, in groups of consecutive ones. A group
// has no message of a smaller epoch after one of a larger, and a message to a new peer is alone. So
// a message waits only for earlier messages of its rank and lane. This cannot deadlock: in the
// least class that is not complete all messages have begun on the ranks where no message of the
// class precedes them; in the lane up that is so for the highest receiver, and once its message is
// complete for the next highest, and so on; in the lane down for the lowest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "reshard/transport/transport.h"

namespace reshard::nccl {

/// One side of one segment of a message between different ranks.
struct Half {
  bool sending = false;
  bool on_host = false;  ///< its bytes are in host memory.
  Rank peer;
  MessageId id;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  std::uint64_t step = 0;  ///< the exchange that it is a part of.
};

enum Lane : std::size_t { kUp = 0, kDown = 1, kLanes = 2 };

/// The lane of a message from one rank to another.
inline Lane lane_of(Rank from, Rank to) { return from < to ? kUp : kDown; }

/// What a group has at most. A group of one half may have more bytes.
struct GroupLimits {
  /// Messages are cut into segments of this size, which all ranks must have equal. At most 256 MiB.
  std::size_t segment_bytes = std::size_t{16} << 20;
  /// Per direction. Thousands are known to deadlock in NCCL.
  int messages = 128;
  /// Per direction. NCCL progresses this many at once in one channel.
  int peers = 8;
  std::size_t bytes = std::size_t{256} << 20;
  /// Of host memory: what is staged on the way. At least a segment.
  std::size_t host_bytes = std::size_t{16} << 20;
};

/// One side of a message between different ranks, before it is cut.
struct Message {
  bool sending = false;
  bool on_host = false;
  Rank peer;
  MessageId id;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  std::uint32_t turn = 0;  ///< as Send::turn.
};

using Lanes = std::array<std::deque<Half>, kLanes>;

/// Appends the halves of an exchange to the queues of their lanes, by (turn, distance between the
/// ranks, sends first, position in the list), cut into segments. Sorts `messages`. @pre peers are 0
/// to size - 1 but not `me`, sizes are not 0
void append_halves(Rank me, int size, std::span<Message> messages, std::uint64_t step,
                   std::size_t segment_bytes, Lanes& lanes);

/// The number of halves at the front of a lane that are its next group; at least one. `connected`:
/// by rank, whether an earlier group of this lane had a message with it. @pre !lane.empty()
std::size_t next_group(const std::deque<Half>& lane, const std::vector<bool>& connected,
                       const GroupLimits& limits);

}  // namespace reshard::nccl
