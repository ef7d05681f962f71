// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/rank_memory.h"

#include <fmt/format.h>

namespace reshard::device {

Result<> expect_on(const cuda::Device& device, const std::byte* at, const char* side,
                   const ModelLayout& layout, Rank rank, SlotId slot) {
  const cuda::MemoryKind kind = RESHARD_TRY(cuda::memory_kind(device, at));
  if (kind == cuda::MemoryKind{true, device.ordinal()}) return {};
  return fail(Code::invalid_argument,
              fmt::format("{} buffer of local tensor '{}' on rank {} is in {}, not on GPU {}", side,
                          layout.slot(slot).name, rank.value(),
                          kind.on_device ? fmt::format("the memory of GPU {}", kind.ordinal)
                                         : "host memory",
                          device.ordinal()));
}

Result<RankMemory> RankMemory::of(const PrepareArguments& work) {
  RankMemory out;
  out.gpu_ = gpu_of(work.source, work.target);
  if (out.gpu_ == nullptr) return out;
  if (work.source != nullptr) RESHARD_TRY(out.add(*work.source, "source", work.me()));
  if (work.target != nullptr) RESHARD_TRY(out.add(*work.target, "target", work.me()));
  return out;
}

Result<> RankMemory::add(const RankBuffers& side, const char* name, Rank me) {
  if (side.device() == nullptr) {
    for (const auto memory : side.memory(me)) {
      auto pinned = pin(memory);
      if (!pinned)
        return tl::unexpected(std::move(pinned).error().in(
            fmt::format("{} of rank {}, for GPU {}", name, me.value(), gpu_->ordinal())));
    }
    return {};
  }
  if (side.device()->ordinal() != gpu_->ordinal())
    return fail(Code::unsupported,
                fmt::format("rank {} has its source on GPU {} and its target on GPU {}; both must "
                            "be on one GPU",
                            me.value(), gpu_->ordinal(), side.device()->ordinal()));
  const ModelLayout& layout = side.layout();
  for (const SlotId slot : layout.slots_of(me))
    if (const std::byte* const at = side.at(me, slot); at != nullptr)
      RESHARD_TRY(expect_on(*gpu_, at, name, layout, me, slot));
  return {};
}

Result<> RankMemory::pin(std::span<std::byte> memory) {
  if (gpu_ == nullptr || memory.empty()) return {};
  pinned_.push_back(RESHARD_TRY(cuda::PinnedRange::make(gpu_, memory)));
  return {};
}

}  // namespace reshard::device
