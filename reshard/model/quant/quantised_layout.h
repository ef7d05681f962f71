// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// The origin of the block grid of a shard.
enum class BlockGrid : std::uint8_t {
  local,   ///< at the shard (of each section of a fused tensor): an engine quantises its shards.
  tensor,  ///< at the canonical tensor: scales of a checkpoint, cut with the data.
};

/// Which tensors of a model are quantised, and how.
struct QuantChoice {
  QuantFormat format;  ///< of all `tensors` but `others`.
  BlockGrid grid = BlockGrid::local;
  std::set<std::string> tensors;  ///< canonical names; matrices, or stacks of them.
  std::string scale_suffix;       ///< of the names of scales; empty: that of the format, such as
                                  ///< "_scale_inv" after "weight", "_scale".
  std::string name = {};          ///< of the stored layout; empty: as the layout of values.
  /// The `tensors` whose canonical dimensions are [matrices, in, out..] instead of [.., out, in]
  /// (experts of gpt-oss): blocks run along the second dimension, and the last is rows. If
  /// dimensions are merged, only formats with blocks of one row accept them. See input_last().
  std::set<std::string> input_first = {};
  /// Scales of experts are those of smaller blocks if shards cut the blocks of the format, as
  /// vLLM's loaders repeat them (Pair::refined).
  bool refines = false;
  /// The formats of those `tensors` that have another one: a checkpoint may mix formats.
  std::map<std::string, QuantFormat> others = {};

  const QuantFormat& format_of(const std::string& tensor) const;
};
/// The formats: "fp8_block", "fp8_block and mxfp4".
std::string to_string(const QuantChoice& choice);
/// True if quantising needs the amax of some whole matrix first.
bool needs_amax(const QuantChoice& choice);

/// A layout whose slots are stored quantised. Slots keep their order.
///
/// `values` is the unquantised layout: canonical tensors of the model, and slots in the dtype that
/// values have before quantisation. Plans between different formats use it.
/// `stored` is the memory: data slots and scale slots, over a derived model in which the data of
/// tensor W are a canonical tensor W of the data dtype, and the scales of W another canonical
/// tensor [.., block rows, block cols]. Two stored layouts with equal `stored->model()` (compare
/// digests) exchange bytes and scales unchanged, by an ordinary plan.
///
/// The canonical scales of W [.., M, N] are named W + "_scale_inv" (f32 of blocks of some columns)
/// or W + "_scale", whatever `scale_suffix` is, with shape [.., ceil(M / block_rows), ceil(N /
/// block_cols)]; a factor is W + "_scale_2" with shape [.., 1, 1]. In the derived model they follow
/// W. Input-first tensors have their input last there: [matrices, out.., in].
///
/// A pair is `exact` if every shard of it, on every rank, begins and ends at the grid of the
/// canonical tensor, or if the grid is that of the tensor (BlockGrid::tensor). Only slots of exact
/// pairs refer to canonical tensors of the derived model. Those of other pairs are declared
/// padding: they are filled from `values` and never planned.
struct QuantisedLayout {
  struct Pair {
    SlotId values;        ///< in `values`.
    SlotId data, scales;  ///< in `stored`.
    SlotId factor{-1};    ///< in `stored`, if the format has one; otherwise -1.
    QuantFormat format = {};
    bool exact = false;
    /// Every rank holds whole blocks only, so data and scales can be computed from its own values.
    /// Always true with BlockGrid::local; false with BlockGrid::tensor if a shard cuts a block
    /// (fill such pairs from whole_blocks()).
    bool whole = false;
    /// The size in elements, in both dimensions, of the blocks that `scales` describes, if smaller
    /// than the format's: each canonical scale is repeated for every part of its block. Such a pair
    /// is exact, and not whole. Otherwise 0.
    Index refined = 0;
  };
  QuantChoice choice;
  std::shared_ptr<const ModelLayout> values, stored;
  std::vector<Pair> pairs;    ///< ascending by `values`.
  std::vector<SlotId> plain;  ///< per slot of `values`: its stored slot if not in a pair, else -1.
};

/// The suffix of the names of scales, if a choice gives none.
std::string scale_suffix(const QuantFormat& format);

/// Permutes slots that store these tensors [.., in, out] to [.., out, in], so that the dimension
/// along which blocks run is the last, as in quantised memory. Slots that have it last stay as they
/// are. Errors: a slot that mixes these tensors and others, or whose input is merged with another
/// dimension.
Result<std::shared_ptr<const ModelLayout>> input_last(std::shared_ptr<const ModelLayout> layout,
                                                      const std::set<std::string>& input_first);

/// Quantises a layout. Every slot that holds a chosen tensor becomes a pair. Errors: a name that
/// the model lacks; a slot that mixes chosen tensors and others, or formats; a tensor with fewer
/// than two dimensions; on a chosen slot a value map or merged dimensions (except rows of
/// input-first tensors); transposed storage whose blocks do not run along the last dimension; a
/// format that the shapes do not allow (named).
Result<QuantisedLayout> quantise_layout(std::shared_ptr<const ModelLayout> layout,
                                        QuantChoice choice);

/// A matrix of a quantised local tensor on one rank, for the kernels; a block grid begins at each.
/// Offsets are in elements of data and scales.
struct QuantBlockArea {
  Index data_offset = 0, rows = 0, cols = 0, data_row = 0;  ///< data_row: row stride of the data.
  Index scale_offset = 0, scale_row = 0;  ///< row stride of the scales; unused if swizzled.
  Index factor_offset = 0;
};
/// @pre the rank has the slot
std::vector<QuantBlockArea> block_areas(const QuantisedLayout& layout,
                                        const QuantisedLayout::Pair& pair, Rank r);

}  // namespace reshard
