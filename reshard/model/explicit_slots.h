// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/model/layout_builder.h"

namespace reshard {

/// A local tensor given fragment by fragment, without a closed form. Equal tensors of several ranks
/// become one slot.
struct ExplicitTensor {
  std::string name;
  DType dtype = DType::bf16;
  Dims shape = {};  ///< before `merged` is applied, which gives the module's shape.
  std::vector<PlacedBox> parts = {};  ///< boxes of canonical tensors, placed in the local tensor.
  bool padded = false;
  MergedDims merged = {};
  ValueMap map = ValueMap::identity;
  bool casts = false;  ///< see Slot::casts.
};

/// Collects the local tensors of ranks and adds one slot to a builder for each distinct tensor,
/// with the set of ranks that hold it. Assumes no symmetry.
class ExplicitSlots {
 public:
  /// Borrows the builder.
  explicit ExplicitSlots(LayoutBuilder& builder) : builder_(builder) {}

  /// Adds ranks to the layout, whether they hold something or not.
  void add_ranks(const RankSet& ranks) { ranks_ = ranks_ | ranks; }
  /// Adds a local tensor that these ranks hold, and the ranks to the layout.
  void add(const RankSet& ranks, ExplicitTensor tensor);
  /// Adds the meshes and slots to the builder, in the order in which their tensors were first
  /// added.
  void finish();

 private:
  struct Entry {
    ExplicitTensor tensor;
    RankSet ranks;
  };
  LayoutBuilder& builder_;
  RankSet ranks_;
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> by_digest_;
};

}  // namespace reshard
