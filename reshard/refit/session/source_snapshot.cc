// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/source_snapshot.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "reshard/cuda/stream.h"

namespace reshard::session {
namespace {

constexpr Index kAlignment = 64;
/// The largest part. Bytes.
constexpr Index kPart = Index{4} << 20;

Index aligned(Index bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<SlotId> slots_with_memory(const RankBuffers& source, Rank me) {
  std::vector<SlotId> out;
  for (const SlotId slot : source.layout().slots_of(me))
    if (source.at(me, slot) != nullptr) out.push_back(slot);
  return out;
}

}  // namespace

Result<std::unique_ptr<SourceSnapshot>> SourceSnapshot::make(const RankBuffers& source, Rank me,
                                                             int threads) {
  std::unique_ptr<SourceSnapshot> out(new SourceSnapshot(source, me, threads));
  out->slots_ = slots_with_memory(source, me);
  Index bytes = 0;
  for (const SlotId slot : out->slots_) bytes += aligned(source.bytes(me, slot));
  out->memory_ = RESHARD_TRY(
      HostBuffer::allocate(bytes, {.prefault_threads = out->pool_.size(), .shared = true}));
  // Copies from a GPU are slower into memory that cannot be pinned, and right all the same.
  if (source.device() != nullptr)
    if (auto pinned = cuda::PinnedRange::make(source.device(), out->memory_.bytes()))
      out->pinned_ = *std::move(pinned);
  std::size_t at = 0;
  for (const SlotId slot : out->slots_) {
    const auto size = static_cast<std::size_t>(source.bytes(me, slot));
    RESHARD_TRY(out->buffers_.bind(me, slot, out->memory_.bytes().subspan(at, size)));
    at += static_cast<std::size_t>(aligned(source.bytes(me, slot)));
    for (Index begin = 0; begin < source.bytes(me, slot); begin += kPart)
      out->parts_.push_back({slot, begin, std::min(kPart, source.bytes(me, slot) - begin)});
  }
  return out;
}

bool SourceSnapshot::fits(const RankBuffers& source) const {
  return source.shared_layout() == buffers_.shared_layout() &&
         slots_with_memory(source, me_) == slots_;
}

Result<> SourceSnapshot::take(const RankBuffers& source) {
  if (source.device() != nullptr) return take_from_gpu(source);
  std::atomic<std::size_t> next = 0;
  auto copy = [&](int) {
    for (std::size_t i = next++; i < parts_.size(); i = next++) {
      const auto& [slot, begin, bytes] = parts_[i];
      std::memcpy(buffers_.at(me_, slot) + begin, source.at(me_, slot) + begin,
                  static_cast<std::size_t>(bytes));
    }
  };
  pool_.run(copy);
  return {};
}

Result<> SourceSnapshot::take_from_gpu(const RankBuffers& source) {
  const auto stream = cuda::Stream::borrow(source.device(), source.stream());
  for (const SlotId slot : slots_)
    RESHARD_TRY(stream.copy(buffers_.at(me_, slot), source.at(me_, slot), source.bytes(me_, slot)));
  return stream.synchronize();
}

}  // namespace reshard::session
