// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "reshard/memory/host_buffer.h"
#include "reshard/model/model_layout.h"

struct CUstream_st;

namespace reshard {
namespace cuda {
class Device;
}

/// "source buffer of local tensor 'x' on rank 3 is not set". `side`: "source" or "target".
Error missing_memory(const char* side, const ModelLayout& layout, Rank r, SlotId slot);

/// Bytes that RankBuffers::bind_rank() needs.
Index bytes_of_rank(const ModelLayout& layout, Rank r);

/// The addresses of ranks' local tensors in this process's memory, or in that of a GPU: one per
/// (rank, slot).
///
/// The memory is owned (allocate) or borrowed (bind); borrowed memory must outlive this object.
/// Move-only.
class RankBuffers {
 public:
  explicit RankBuffers(std::shared_ptr<const ModelLayout> layout);
  RankBuffers(RankBuffers&&) noexcept = default;
  RankBuffers& operator=(RankBuffers&&) noexcept = default;

  /// Allocates zeroed memory for every local tensor of these ranks: one buffer per rank, each
  /// tensor 64-byte aligned. Errors: out of memory (says how many bytes were needed).
  static Result<RankBuffers> allocate(std::shared_ptr<const ModelLayout> layout,
                                      std::span<const Rank> ranks,
                                      HostBuffer::Options options = {});

  /// Borrows one range of memory for all local tensors of a rank, each 64-byte aligned if the range
  /// is. Errors: it has fewer than bytes_of_rank().
  Result<> bind_rank(Rank r, std::span<std::byte> memory);
  /// Borrows memory for one local tensor. Errors: `bytes` does not have the tensor's size; the rank
  /// has no such tensor.
  Result<> bind(Rank r, SlotId slot, std::span<std::byte> bytes);
  /// The same for a source that is never written, such as a mapped file.
  Result<> bind_read_only(Rank r, SlotId slot, std::span<const std::byte> bytes);

  /// Says that all memory bound here is that of a GPU, and which stream of it the caller's work on
  /// the tensors uses; null: the legacy default stream, which is torch's default. Refits read and
  /// write the tensors after the work that the stream has when they begin. The stream is borrowed.
  void set_device(std::shared_ptr<const cuda::Device> device, CUstream_st* stream = nullptr) {
    device_ = std::move(device);
    stream_ = stream;
  }
  /// The GPU; null: all memory is host memory.
  const std::shared_ptr<const cuda::Device>& device() const { return device_; }
  CUstream_st* stream() const { return stream_; }

  const ModelLayout& layout() const { return *layout_; }
  const std::shared_ptr<const ModelLayout>& shared_layout() const { return layout_; }
  /// The first byte of a local tensor; null if it was neither allocated nor bound, or has no bytes.
  std::byte* at(Rank r, SlotId slot) const {
    return r.index() < address_.size() && !address_[r.index()].empty()
               ? address_[r.index()][slot.index()]
               : nullptr;
  }
  /// Bytes of a local tensor. @pre the rank has the slot
  Index bytes(Rank r, SlotId slot) const;
  /// The memory of a rank's local tensors as few spans, ascending and disjoint, for
  /// Transport::share(): an allocated buffer whole; bound memory merged with neighbours in the same
  /// or the next page.
  std::vector<std::span<std::byte>> memory(Rank r) const;
  /// Ranks with any memory here, ascending.
  std::vector<Rank> ranks() const;

 private:
  std::shared_ptr<const ModelLayout> layout_;
  std::shared_ptr<const cuda::Device> device_;
  CUstream_st* stream_ = nullptr;
  struct Owned {
    Rank rank;
    HostBuffer buffer;
  };
  std::vector<Owned> owned_;
  std::vector<std::vector<std::byte*>> address_;  ///< [rank][slot]
};

/// The GPU that has the memory of one of these sides of a rank, or of both; null if none has.
/// Either may be null.
const std::shared_ptr<const cuda::Device>& gpu_of(const RankBuffers* source,
                                                  const RankBuffers* target);

}  // namespace reshard
