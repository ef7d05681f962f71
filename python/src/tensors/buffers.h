// SPDX-License-Identifier: Apache-2.0
// reshard.RankBuffers: local tensors of ranks in the memory of Python objects, or in its own.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "python/src/layout.h"
#include "python/src/tensors/gpus.h"
#include "python/src/tensors/tensors.h"
#include "reshard/cuda/memory.h"

namespace reshard::python {

/// The class reshard.RankBuffers. Not thread-safe; everything needs the GIL.
///
/// All memory is the host's, or all is one GPU's. That of a GPU is used on a stream: the one that
/// was given, or else the one on which the tensors' library works whenever they are looked at.
class TensorBuffers {
 public:
  /// The tensors of one rank: a mapping from names to tensors, or a callable that returns one. The
  /// mapping is held, and asked again by refresh().
  struct RankTensors {
    Rank rank;
    nb::object given;
  };

  /// `side` is for messages: "source ", "target " or "". Errors: a rank or name that the layout
  /// lacks, a tensor of the layout that is missing, tensors in different places, those of
  /// PinnedTensor, check_tensor(), gpu() and stream_handle().
  TensorBuffers(std::shared_ptr<const Layout> layout, std::vector<RankTensors> tensors,
                const char* side, nb::object stream);
  /// Zeroed memory of its own, of the host or of a GPU. The latter is zero when this returns.
  static std::unique_ptr<TensorBuffers> allocate(std::shared_ptr<const Layout> layout,
                                                 const RankSet& ranks, HostBuffer::Options options);
  static std::unique_ptr<TensorBuffers> allocate(std::shared_ptr<const Layout> layout,
                                                 const RankSet& ranks, int ordinal,
                                                 nb::object stream);

  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  const RankBuffers& memory() const { return memory_; }
  /// Bytes of all local tensors here.
  Index bytes() const;
  bool owns_memory() const { return tensors_.empty(); }
  /// Null: all memory is the host's.
  const std::shared_ptr<const cuda::Device>& device() const { return memory_.device(); }
  /// "cpu" or "cuda:0".
  std::string place() const;

  /// The findings of a look at every tensor. Nothing is replaced before take() gets them, so that
  /// others can refuse them.
  class Look {
   public:
    /// The memory as take() will have it.
    const RankBuffers& memory() const { return moved_ ? *moved_ : *memory_; }

   private:
    friend class TensorBuffers;
    struct Moved {
      std::size_t binding;
      PinnedTensor tensor;
    };
    const RankBuffers* memory_ = nullptr;
    std::optional<RankBuffers> moved_;  ///< if any tensor has.
    std::vector<Moved> tensors_;
    std::set<std::uint64_t> producers_;
    std::shared_ptr<const cuda::Device> device_;
    nb::object stream_ = nb::none();
    cuda::StreamHandle handle_ = nullptr;
  };

  /// Looks at every tensor again, through its mapping. Errors: a tensor is gone, freed, resized or
  /// otherwise no longer what the layout wants (named); as the constructor's.
  Look look(const char* side, const nb::object& stream = {}) const;
  /// Notes where the tensors are that have moved. memory() then has the stream to use: that of
  /// look(), if it was valid and not None, else that of this object. Never waits for a GPU.
  void take(Look look);
  /// Both.
  void refresh(const char* side, const nb::object& stream = {}) { take(look(side, stream)); }
  /// Makes the stream `to` wait for the work that this object's stream has now.
  void lend(cuda::StreamHandle to);
  /// The same as an object of its own. @pre device()
  std::unique_ptr<TensorBuffers> on_host() const;
  /// Copies host memory of the same layout into the tensors of a rank, and waits. @pre device()
  void copy_from(const RankBuffers& host, Rank rank);
  /// The object that was given for a local tensor, or one that exports the memory; `self` is this
  /// object in Python.
  nb::object tensor(nb::handle self, Rank rank, const std::string& name) const;
  /// {name: tensor} of a rank.
  nb::dict tensors_of(nb::handle self, Rank rank) const;

  int traverse(visitproc visit, void* arg) const;
  /// Drops all objects; the memory can no longer be used.
  void clear();

 private:
  struct Binding {
    Rank rank;
    SlotId slot;
    nb::object key;  ///< the name.
    PinnedTensor tensor;
  };
  /// Copies of all tensors in host memory, after the work that the stream has. @pre device()
  RankBuffers host_copy() const;
  explicit TensorBuffers(std::shared_ptr<const Layout> layout, RankBuffers memory);
  static void check_ranks(const Layout& layout, const RankSet& ranks);
  LookOptions looks(const nb::object& stream, TypeFacts& types) const;
  void bind_rank(const RankTensors& tensors, const char* side, const LookOptions& options);
  void check(const Binding& binding, const TensorView& view, const char* side) const;
  void bind(RankBuffers& memory, const Binding& binding, const TensorView& view) const;
  RankBuffers bound(const std::vector<Look::Moved>& moved) const;
  nb::object given(const Binding& binding, nb::handle mapping, const char* side) const;
  /// The place of all tensors, of which some are as `moved` says.
  std::shared_ptr<const cuda::Device> device_of(const std::vector<Look::Moved>& moved,
                                                const char* side) const;
  cuda::StreamHandle handle_of(const nb::object& stream,
                               const std::shared_ptr<const cuda::Device>& device) const;
  cuda::Stream stream() const { return cuda::Stream::borrow(device(), memory_.stream()); }
  SlotId slot_of(Rank rank, const std::string& name) const;
  nb::object exported(nb::handle self, Rank rank, SlotId slot) const;
  std::string_view name_of(SlotId slot) const { return layout_->stored().slot(slot).name; }
  TensorName text_of(const char* side, Rank rank, SlotId slot) const {
    return {side, rank.value(), name_of(slot)};
  }

  std::shared_ptr<const Layout> layout_;
  RankBuffers memory_;
  std::vector<RankTensors> given_;
  std::vector<Binding> tensors_;  ///< in the order of given_; empty if the memory is its own.
  std::vector<cuda::Buffer> gpu_memory_;  ///< its own.
  nb::object stream_ = nb::none();        ///< that was given; None: the current one.
  nb::object used_stream_ = nb::none();   ///< keeps the one in use alive.
  StreamOrder order_;
};

/// Throws why a refit must not use memory, if MemoryCheck says so.
void expect_usable(MemoryCheck& check, const MemoryCheck::Sides& sides);

/// The tensors of one side as Python gives them: None, a mapping {name: tensor} of rank `me`, a
/// callable that returns one, or a RankBuffers. An invalid object for None. `stream` as for
/// TensorBuffers.
nb::object buffers_of(const nb::object& tensors, const std::shared_ptr<const Layout>& layout,
                      Rank me, const char* side, const nb::object& stream);

/// The local tensors of a layout on a rank, as memory should be for them.
WantedTensor wanted_tensor(const ModelLayout& layout, SlotId slot, Rank rank);

}  // namespace reshard::python
