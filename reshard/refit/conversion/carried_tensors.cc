// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/carried_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "reshard/cuda/stream.h"
#include "reshard/refit/conversion/written_bytes.h"

namespace reshard::conversion {
namespace {

/// Bytes that a thread copies at a time.
constexpr Index kShare = Index{4} << 20;

}  // namespace

Result<CarriedTensors> CarriedTensors::of(const SessionSide& target, Rank me,
                                          const std::vector<bool>& moves) {
  CarriedTensors out;
  out.copies_ = {target.buffers, target.back};
  out.me_ = me;
  for (const SlotId slot : partly_written(target, me, moves)) {
    const bool first = target.buffers->at(me, slot) != nullptr,
               second = target.back->at(me, slot) != nullptr;
    if (first != second)
      return fail(
          Code::invalid_argument,
          fmt::format("the {} copy of the target has no memory for local tensor '{}', which "
                      "the {} has; refits leave parts of it as they are, so give both "
                      "copies memory for it",
                      first ? "second" : "first", target.stored()->slot(slot).name,
                      first ? "first" : "second"));
    if (first) out.slots_.push_back(slot);
  }
  return out;
}

Result<> CarriedTensors::copy_to(int copy, WorkerPool& pool) {
  if (slots_.empty() || copied_) return {};
  const bool on_gpu = copies_[0]->device() != nullptr || copies_[1]->device() != nullptr;
  RESHARD_TRY(on_gpu ? copy_on_gpu(copy) : copy_on_host(copy, pool));
  copied_ = true;
  return {};
}

Result<> CarriedTensors::copy_on_host(int copy, WorkerPool& pool) const {
  const RankBuffers &into = *copies_[static_cast<std::size_t>(copy)],
                    &from = *copies_[static_cast<std::size_t>(1 - copy)];
  auto body = [&](int worker) {
    Index share = 0;
    for (const SlotId slot : slots_)
      for (Index at = 0; at < into.bytes(me_, slot); at += kShare)
        if (share++ % pool.size() == worker)
          std::memmove(into.at(me_, slot) + at, from.at(me_, slot) + at,
                       static_cast<std::size_t>(std::min(kShare, into.bytes(me_, slot) - at)));
  };
  pool.run(body);
  return {};
}

/// The refit that follows comes after this on the stream of the copy that it writes.
Result<> CarriedTensors::copy_on_gpu(int copy) const {
  const RankBuffers &into = *copies_[static_cast<std::size_t>(copy)],
                    &from = *copies_[static_cast<std::size_t>(1 - copy)];
  const auto stream_of = [](const RankBuffers& memory) {
    return cuda::Stream::borrow(memory.device(), memory.stream());
  };
  if (from.device() != nullptr) RESHARD_TRY(stream_of(from).synchronize());
  const cuda::Stream stream = stream_of(into.device() != nullptr ? into : from);
  for (const SlotId slot : slots_)
    RESHARD_TRY(stream.copy(into.at(me_, slot), from.at(me_, slot), into.bytes(me_, slot)));
  return into.device() != nullptr ? Result<>() : stream.synchronize();
}

}  // namespace reshard::conversion
