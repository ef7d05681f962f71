// SPDX-License-Identifier: Apache-2.0
// The NCCL groups of an exchange.
//
// NCCL runs the groups of a communicator one after another: a group is over when all its messages
// are. Within a group it orders messages by a schedule of its own, which depends on the hosts of
// the ranks. It promises progress if the ranks give equal groups: each message in the same one on
// both sides, in a common order. The exchanges of programs have that property (law 8 in program.h),
// so an exchange is a group, with messages in both directions, on one communicator.
//
// Messages are cut into segments, because host memory is staged on its way, on either side. Both
// sides cut alike, so the first segments of an exchange are one group, the second segments the
// next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "reshard/transport/transport.h"

namespace reshard::nccl {

/// One side of a message between different ranks.
struct Message {
  bool sending = false;
  bool on_host = false;  ///< its bytes are in host memory.
  Rank peer;
  MessageId id;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  std::uint32_t turn = 0;  ///< as Send::turn.
};

/// One side of one segment of a message.
struct Half {
  bool sending = false;
  bool on_host = false;
  Rank peer;
  MessageId id;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  std::uint64_t step = 0;  ///< the exchange that it is a part of.
  std::size_t segment = 0;

  bool is_grouped_with(const Half& h) const { return step == h.step && segment == h.segment; }
};

/// Sizes, in bytes.
struct GroupLimits {
  /// Messages are cut into segments of this size, which all ranks must have equal. At most 256 MiB.
  std::size_t segment_bytes = std::size_t{16} << 20;
  /// Initial size of the buffers through which host memory travels. They grow if a group needs it.
  std::size_t host_bytes = std::size_t{16} << 20;
};

/// Appends the halves of an exchange, group by group; messages between two ranks by (turn, position
/// in the list). Sorts `messages`. @pre sizes are not 0
void append_halves(std::span<Message> messages, std::uint64_t step, std::size_t segment_bytes,
                   std::deque<Half>& queue);

}  // namespace reshard::nccl
