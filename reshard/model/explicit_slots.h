// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/model/layout_builder.h"

namespace reshard {

/// A local tensor given fragment by fragment, with no closed form behind it. Equal ones on many
/// ranks become one slot.
struct ExplicitTensor {
  std::string name;
  DType dtype = DType::bf16;
  Dims shape = {};                    ///< as the parts count; `merged` makes the module's of it.
  std::vector<PlacedBox> parts = {};  ///< boxes of canonical tensors, placed in the local tensor.
  bool padded = false;
  MergedDims merged = {};
  ValueMap map = ValueMap::identity;
  bool casts = false;  ///< as Slot::casts.
};

/// Collects the local tensors of ranks and adds a slot to a builder for each distinct one, with the
/// set of ranks that hold it. Nothing symmetrical is assumed.
class ExplicitSlots {
 public:
  /// Both are borrowed.
  explicit ExplicitSlots(LayoutBuilder& builder) : builder_(builder) {}

  /// Says that a rank belongs to the layout, whether it holds something or not.
  void add_ranks(const RankSet& ranks) { ranks_ = ranks_ | ranks; }
  /// These ranks hold this local tensor. They belong to the layout.
  void add(const RankSet& ranks, ExplicitTensor tensor);
  /// Adds the meshes and slots, in the order in which their tensors first came.
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
