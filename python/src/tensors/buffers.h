// SPDX-License-Identifier: Apache-2.0
// reshard.RankBuffers: local tensors of ranks in the memory of Python objects, or in its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "python/src/layout.h"
#include "python/src/tensors/tensors.h"

namespace reshard::python {

/// The class reshard.RankBuffers. Not thread-safe; everything needs the GIL.
class TensorBuffers {
 public:
  /// The tensors of one rank: a mapping from names to tensors, or a callable that returns one. The
  /// mapping is held, and asked again by refresh().
  struct RankTensors {
    Rank rank;
    nb::object given;
  };

  /// `side` is for messages: "source ", "target " or "". Errors: a rank or name that the layout
  /// lacks, a tensor of the layout that is missing, those of PinnedTensor and check_tensor().
  TensorBuffers(std::shared_ptr<const Layout> layout, std::vector<RankTensors> tensors,
                const char* side);
  /// Zeroed memory of its own.
  static std::unique_ptr<TensorBuffers> allocate(std::shared_ptr<const Layout> layout,
                                                 const RankSet& ranks, HostBuffer::Options options);

  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  const RankBuffers& memory() const { return memory_; }
  /// Bytes of all local tensors here.
  Index bytes() const;
  bool owns_memory() const { return tensors_.empty(); }

  /// Looks at every tensor again, through its mapping, and notes where those are that have moved;
  /// true if any has. Errors: a tensor is gone, freed, resized or otherwise no longer what the
  /// layout wants (named).
  bool refresh(const char* side);
  /// Errors: a tensor that may not be written, two that share bytes (named).
  void check_writable(const char* side) const;
  /// Errors: a tensor shares bytes with one of `other` (both named).
  void check_apart(const char* side, const TensorBuffers& other, const char* other_side) const;

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
  /// A byte range of a tensor, for finding overlaps.
  struct Range {
    std::uintptr_t begin, end;
    Rank rank;
    SlotId slot;
  };

  explicit TensorBuffers(std::shared_ptr<const Layout> layout, RankBuffers memory);
  void bind_rank(const RankTensors& tensors, const char* side);
  void bind(Rank rank, SlotId slot, const TensorView& view, const char* side);
  nb::object given(const Binding& binding, nb::handle mapping, const char* side) const;
  SlotId slot_of(Rank rank, const std::string& name) const;
  nb::object exported(nb::handle self, Rank rank, SlotId slot) const;
  std::vector<Range> ranges() const;
  std::string_view name_of(SlotId slot) const { return layout_->stored().slot(slot).name; }
  TensorName text_of(const char* side, Rank rank, SlotId slot) const {
    return {side, rank.value(), name_of(slot)};
  }

  std::shared_ptr<const Layout> layout_;
  RankBuffers memory_;
  std::vector<RankTensors> given_;
  std::vector<Binding> tensors_;  ///< in the order of given_; empty if the memory is its own.
};

/// What Python gives for the tensors of one side: None, a mapping {name: tensor} of rank `me`, a
/// callable that returns one, or a RankBuffers. An invalid object for None.
nb::object buffers_of(const nb::object& tensors, const std::shared_ptr<const Layout>& layout,
                      Rank me, const char* side);

/// The local tensors of a layout on a rank, as memory should be for them.
WantedTensor wanted_tensor(const ModelLayout& layout, SlotId slot, Rank rank);

}  // namespace reshard::python
