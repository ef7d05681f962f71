// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// Where the block grid of a shard begins.
enum class BlockGrid : std::uint8_t {
  local,   ///< at the shard (of each section of a fused tensor): an engine quantises what it holds.
  tensor,  ///< at the canonical tensor: a checkpoint's scales, cut with the data.
};

/// What of a model is quantised, and how.
struct QuantChoice {
  QuantFormat format;
  BlockGrid grid = BlockGrid::local;
  std::set<std::string> tensors;  ///< canonical names; matrices, or stacks of them.
  std::string scale_suffix;       ///< of names of scales; empty: the format's usual one, such as
                                  ///< "_scale_inv" after "weight", "_scale".
  std::string name = {};          ///< of the stored layout; empty: that of the values'.
  /// Of `tensors`, those whose canonical dimensions are [matrices, in, out..] and not [.., out, in]
  /// (gpt-oss' experts): blocks run along the second, and the last is rows. Only formats with
  /// blocks of one row take them where dimensions are merged. See input_last().
  std::set<std::string> input_first = {};
  /// Experts' scales are those of smaller blocks where shards cut the format's, as vLLM's loaders
  /// repeat them (Pair::refined).
  bool refines = false;
};

/// A layout whose slots are stored quantised, seen in three ways. Slots keep their order.
///
/// `values` is the layout as if nothing were quantised: canonical tensors of the model, slots in
/// the dtype that values have before. What a plan between different formats is made of.
/// `stored` is what is in memory: data slots and scale slots, over a model of its own in which the
/// data of tensor W are a canonical tensor W of the data dtype, and its scales one of their own
/// [.., block rows, block cols]. Two stored layouts with equal `stored->model()` (compare digests)
/// move bytes and scales as they are, by an ordinary plan.
///
/// Canonical scales of W [.., M, N] are named W with "_scale_inv" (f32 of blocks of some columns)
/// or
/// "_scale" behind it, whatever `scale_suffix` says, of shape [.., ceil(M / block_rows), ceil(N /
/// block_cols)]; a factor is W with "_scale_2", of shape [.., 1, 1]. In the derived model they
/// follow W. What is stored of input-first tensors has its input last there: [matrices, out.., in].
///
/// A pair is `exact` when every shard of it, on every rank, begins and ends at the grid of the
/// canonical tensor (or the grid is the tensor's own, BlockGrid::tensor): only then do its slots
/// refer to canonical tensors of the stored model. The others are declared padding: they are filled
/// from `values` and never planned.
struct QuantisedLayout {
  struct Pair {
    SlotId values;        ///< in `values`.
    SlotId data, scales;  ///< in `stored`.
    SlotId factor{-1};    ///< in `stored`, where the format has one; else -1.
    bool exact = false;
    /// Every rank holds each block that it has a part of whole: data and scales can be made from
    /// the rank's own values. Always so with BlockGrid::local; with BlockGrid::tensor not where a
    /// shard cuts a block (fill those by a plan from a layout where it is whole).
    bool whole = false;
    /// Elements of the blocks, down and across, that `scales` has one for each of, where they are
    /// smaller than the format's: each canonical scale is there for every part of its block. Such a
    /// pair is exact, and not whole. Else 0.
    Index refined = 0;
  };
  QuantChoice choice;
  std::shared_ptr<const ModelLayout> values, stored;
  std::vector<Pair> pairs;    ///< ascending by `values`.
  std::vector<SlotId> plain;  ///< stored slot of each values slot that is not in a pair; -1 else.
};

/// What follows a tensor's name in that of its scales, where a choice does not say.
std::string scale_suffix(const QuantFormat& format);

/// The layout with these tensors, stored [.., in, out], stored [.., out, in]: the dimension that
/// blocks run along is the last of their slots, as in memory that holds them quantised. Slots that
/// have it last stay as they are. Errors: a slot that mixes them and others, or whose input is
/// merged with another dimension.
Result<std::shared_ptr<const ModelLayout>> input_last(std::shared_ptr<const ModelLayout> layout,
                                                      const std::set<std::string>& input_first);

/// Applies a choice to a layout. Every slot that holds a chosen tensor becomes a pair. Errors: a
/// name that the model lacks; a slot that mixes chosen tensors and others; a tensor with fewer than
/// two dimensions; a value map or, but for rows of input-first tensors, merged dimensions on a
/// chosen slot; transposed storage whose blocks do not run along the last dimension; a format that
/// its shapes do not allow (named).
Result<QuantisedLayout> quantise_layout(std::shared_ptr<const ModelLayout> layout,
                                        QuantChoice choice);

/// The matrices of one quantised local tensor on one rank, for the kernels: the grid begins anew at
/// each. Offsets in elements of data and scales.
struct QuantBlockArea {
  Index data_offset = 0, rows = 0, cols = 0, data_row = 0;  ///< data_row: elements row to row.
  Index scale_offset = 0, scale_row = 0;                    ///< scales; unused when swizzled.
  Index factor_offset = 0;
};
/// @pre the rank has the slot
std::vector<QuantBlockArea> block_areas(const QuantisedLayout& layout,
                                        const QuantisedLayout::Pair& pair, Rank r);

}  // namespace reshard
