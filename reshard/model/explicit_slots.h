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

/// Ranks of explicit layouts are below this number.
inline constexpr Index kMaxExplicitRanks = Index{1} << 20;

/// Checks a local tensor from an untrusted source: the size of its shape does not overflow; every
/// part is a box of a tensor of the model, lies in the shape, and maps each canonical dimension to
/// a full dimension of its own; parts are disjoint; what they leave uncovered is declared padding.
/// Errors are Code::invalid_argument and name the local tensor and the part (from 1), or
/// Code::unsupported if parts are interlocked so deeply that they cannot be compared in about
/// linear time.
Result<> check_explicit(const ExplicitTensor& tensor, const ModelSpec& model);

/// The distinct local tensors of ranks, each with the set of ranks that hold it, in the order in
/// which they were first added.
class ExplicitTensors {
 public:
  struct Entry {
    RankSet ranks;
    ExplicitTensor tensor;
  };

  void add(const RankSet& ranks, ExplicitTensor tensor);
  std::vector<Entry> take() &&;

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> by_digest_;
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
  LayoutBuilder& builder_;
  RankSet ranks_;
  ExplicitTensors tensors_;
};

}  // namespace reshard
