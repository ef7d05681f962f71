// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/halves.h"

#include <algorithm>

namespace reshard::nccl {

void append_halves(std::span<Message> messages, std::uint64_t step, std::size_t segment_bytes,
                   std::deque<Half>& queue) {
  std::ranges::stable_sort(messages, {}, &Message::turn);
  bool is_last = false;
  for (std::size_t segment = 0; !is_last; ++segment) {
    is_last = true;
    const std::size_t begin = segment * segment_bytes;
    for (const Message& m : messages) {
      if (m.size <= begin) continue;
      const std::size_t size = std::min(segment_bytes, m.size - begin);
      queue.push_back({m.sending, m.on_host, m.peer, m.id, m.bytes + begin, size, step, segment});
      is_last &= begin + size == m.size;
    }
  }
}

}  // namespace reshard::nccl
