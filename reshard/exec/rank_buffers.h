// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
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
  /// The same for memory that must not be written, such as a mapped file: refits refuse it as a
  /// target.
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
  /// True if it was bound by bind_read_only().
  bool read_only(Rank r, SlotId slot) const {
    return r.index() < read_only_.size() && slot.index() < read_only_[r.index()].size() &&
           read_only_[r.index()][slot.index()];
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
  friend class MemoryCheck;
  Result<> bind(Rank r, SlotId slot, std::span<std::byte> bytes, bool read_only);

  std::shared_ptr<const ModelLayout> layout_;
  std::shared_ptr<const cuda::Device> device_;
  CUstream_st* stream_ = nullptr;
  struct Owned {
    Rank rank;
    HostBuffer buffer;
  };
  std::vector<Owned> owned_;
  std::vector<std::vector<std::byte*>> address_;  ///< [rank][slot]
  std::vector<std::vector<bool>> read_only_;      ///< the same; empty for ranks without any.
};

/// Decides whether a refit may use the memory that it was given. Every refit asks one before it
/// replaces or writes anything; there is no other place that decides this.
///
/// Memory that a refit writes must not be read-only, nor share a byte with another local tensor of
/// source, target or second copy. Sources may share bytes with each other. Sizes need no check
/// here: RankBuffers binds no memory of another size. Any alignment will do.
class MemoryCheck {
 public:
  /// A target, and its second copy; null where there is none.
  struct Written {
    const RankBuffers *target = nullptr, *back = nullptr;
  };
  /// The memory of one refit; null where there is none.
  struct Sides {
    const RankBuffers* source = nullptr;
    const RankBuffers* target = nullptr;
    const RankBuffers* back = nullptr;   ///< the second copy of the target.
    std::optional<Rank> only = {};       ///< whose local tensors are used; none: all ranks'.
    std::span<const Written> more = {};  ///< targets beside `target`; borrowed.
  };

  /// Why a refit must not use it: one tensor, what is wrong, what would be right. "" if it may.
  /// Remembers what it has approved last, and for this allocates nothing and compares addresses
  /// only; all else costs a sort of all tensors. What was refused is looked at whole the next time.
  std::string trouble(const Sides& sides);

 private:
  /// The last approved state of one side.
  struct Approved {
    std::shared_ptr<const ModelLayout> layout;
    std::optional<Rank> only;
    std::vector<std::vector<std::byte*>> address;
    std::vector<std::vector<bool>> read_only;
  };
  struct Tensor;

  static bool equal(const Approved& approved, const RankBuffers* now, std::optional<Rank> only);
  static void approve(Approved& approved, const RankBuffers* now, std::optional<Rank> only);
  std::vector<Tensor> tensors(std::optional<Rank> only) const;
  std::string first_trouble(std::optional<Rank> only) const;

  bool has_approved_ = false;
  /// The source, then each target and its second copy: as given, and as approved.
  std::vector<const RankBuffers*> buffers_;
  std::vector<Approved> approved_;
};

/// The same once, as an error.
Result<> check_memory(const MemoryCheck::Sides& sides);

/// The GPU that has the memory of one of these sides of a rank, or of both; null if none has.
/// Either may be null.
const std::shared_ptr<const cuda::Device>& gpu_of(const RankBuffers* source,
                                                  const RankBuffers* target);

}  // namespace reshard
