// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/gpu_memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "reshard/base/hash.h"
#include "reshard/cuda/ipc/gpu_ranges.h"

namespace reshard::session {

GpuMemoryWatch GpuMemoryWatch::of(std::string side, const SessionSide& memory, Rank me) {
  GpuMemoryWatch out;
  if (memory.buffers == nullptr || memory.buffers->device() == nullptr) return out;
  out.side_ = std::move(side);
  out.device_ = memory.buffers->device();
  out.layout_ = memory.buffers->shared_layout();
  out.add(*memory.buffers, me);
  if (memory.back != nullptr && memory.back->device() != nullptr) out.add(*memory.back, me);
  return out;
}

void GpuMemoryWatch::add(const RankBuffers& buffers, Rank me) {
  std::vector<std::pair<std::span<std::byte>, SlotId>> tensors;
  for (const SlotId slot : buffers.layout().slots_of(me))
    if (std::byte* const at = buffers.at(me, slot); at != nullptr)
      tensors.push_back({{at, static_cast<std::size_t>(buffers.bytes(me, slot))}, slot});
  std::ranges::sort(tensors, std::less<>(), [](const auto& t) { return t.first.data(); });
  const std::byte* end = nullptr;
  for (const auto& [span, slot] : tensors) {
    if (end != nullptr && !std::less<>()(end, span.data() + span.size())) continue;
    // Of what the tensor reaches beyond the allocations that are watched already.
    std::span<std::byte> rest = span;
    if (end != nullptr && std::less<>()(span.data(), end))
      rest = span.subspan(static_cast<std::size_t>(end - span.data()));
    const auto ranges = gpu_ranges(*device_, {&rest, 1});
    if (!ranges) continue;
    for (const GpuRange& range : *ranges)
      for (const GpuAllocation& allocation : range.allocations)
        watched_.push_back({allocation.base, slot});
    end = ranges->back().end();
  }
}

GpuMemoryWatch::State GpuMemoryWatch::look() const {
  State out;
  if (watched_.empty()) return out;
  out.id = 1;
  for (const Watched& watched : watched_) {
    const auto id = gpu_memory_id(*device_, watched.at);
    if (!id) {
      out.trouble = id.error().message;
    } else if (*id == 0) {
      out.trouble = fmt::format(
          "{} tensor '{}' has no memory on GPU {}: it was unmapped; {} before the refit", side_,
          layout_->slot(watched.first).name, device_->ordinal(),
          side_ == "source" ? "map the weights again" : "wake the engine");
    } else {
      out.id = mix64(out.id ^ *id);
      continue;
    }
    return out;
  }
  return out;
}

}  // namespace reshard::session
