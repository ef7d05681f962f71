// SPDX-License-Identifier: Apache-2.0
// One rank's side of a refit in the memory of a GPU, of any kind, which can sleep and wake.
#pragma once

#include <memory>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/mapped_memory_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard {

class GpuSide {
 public:
  /// Nothing if the rank has none of the layout. `handle_types` as MappedMemory; -1: memory of
  /// cuMemAlloc().
  GpuSide(std::shared_ptr<const ModelLayout> layout, Rank me, int handle_types = cuda::kFileHandle)
      : host(allocated(layout, me)), on_gpu(layout), me_(me) {
    if (host.ranks().empty()) return;
    const Index bytes = bytes_of_rank(*layout, me);
    if (handle_types >= 0) {
      mapped = std::make_unique<cuda::MappedMemory>(gpu_, bytes, handle_types);
    } else {
      buffer_ = cuda::Buffer::on_device(gpu_, bytes).value();
    }
    bind();
  }

  /// The buffers that refits get; null if the rank holds nothing.
  const RankBuffers* buffers() const { return host.ranks().empty() ? nullptr : &on_gpu; }
  /// Gives the default stream a copy of `host`, and does not wait for it.
  void write() const { copy(true); }
  /// Makes `host` what the GPU has.
  void read() const {
    copy(false);
    RESHARD_CHECK(stream().synchronize());
  }
  /// Memory of cuMemAlloc(): frees it and allocates as much. True if it has the same address.
  bool reallocate() {
    const std::byte* const before = buffer_.data();
    const Index bytes = buffer_.size();
    {
      const cuda::Buffer freed = std::move(buffer_);
    }
    buffer_ = cuda::Buffer();
    buffer_ = cuda::Buffer::on_device(gpu_, bytes).value();
    return buffer_.data() == before;
  }

  RankBuffers host, on_gpu;
  std::unique_ptr<cuda::MappedMemory> mapped;  ///< null: memory of cuMemAlloc(), or none.

 private:
  static RankBuffers allocated(const std::shared_ptr<const ModelLayout>& layout, Rank me) {
    const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
    return *RankBuffers::allocate(layout, ranks, {.shared = false});
  }
  cuda::Stream stream() const { return cuda::Stream::borrow(gpu_, nullptr); }
  void bind() {
    const Index bytes = bytes_of_rank(on_gpu.layout(), me_);
    std::byte* const at = mapped ? mapped->data() : buffer_.data();
    RESHARD_CHECK(on_gpu.bind_rank(me_, {at, static_cast<std::size_t>(bytes)}));
    on_gpu.set_device(gpu_);
  }
  void copy(bool to_gpu) const {
    if (buffers() == nullptr) return;
    for (const SlotId slot : host.layout().slots_of(me_)) {
      const Index bytes = host.bytes(me_, slot);
      std::byte *here = host.at(me_, slot), *there = on_gpu.at(me_, slot);
      if (bytes > 0)
        RESHARD_CHECK(to_gpu ? stream().copy(there, here, bytes)
                             : stream().copy(here, there, bytes));
    }
  }

  Rank me_;
  std::shared_ptr<const cuda::Device> gpu_ = cuda::gpu_under_test();
  cuda::Buffer buffer_;
};

}  // namespace reshard
