// SPDX-License-Identifier: Apache-2.0
// Where the blocks of canonical tensors lie in slots: what quantised_layout.h is made of.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/model/model_layout.h"

namespace reshard::quant {

/// Scales in a tile of swizzled ones.
inline constexpr Index kSwizzleRows = 128, kSwizzleCols = 4;
/// True when the sections of a slot are stacked by rows: with swizzled scales they are one matrix,
/// as engines have it.
bool is_one_matrix(const Slot& slot);

/// What a rank holds of a section's full dimensions.
using LocalDims = std::array<Interval, kMaxDims>;
LocalDims local_dims(const ModelLayout& layout, const Slot& slot, const Section& section, Rank r);

/// Elements of a block along a dimension of `whole` elements.
constexpr Index block_along(Index block, Index whole) {
  return block > 0 ? block : std::max<Index>(1, whole);
}

/// Rows (0) or columns (1) of a part: where they are in the full dimension and in the canonical
/// one.
struct Window {
  Interval at;      ///< full dimension.
  Index first = 0;  ///< canonical index of at.begin().
  Index whole = 0;  ///< the canonical dimension.
  friend bool operator==(const Window&, const Window&) = default;
};

/// Which canonical dimensions are rows and columns of a tensor's matrices: the last two, or the
/// last and the second of one that is stored input first (see QuantChoice).
struct MatrixDims {
  int row = 0, col = 0;
};
/// @pre the tensor has two dimensions or more, one that is stored input first three
MatrixDims matrix_dims(const CanonicalTensor& tensor, const std::set<std::string>& input_first);

/// True when canonical rows are columns of the full tensor. None where those dimensions are not the
/// last two of the full one.
std::optional<bool> is_transposed(const Section& section, const PlacedBox& part, MatrixDims dims);

/// Parts of one section with equal windows: their scales are one section of a slot of scales.
struct BlockGroup {
  int section = 0;
  std::array<Window, 2> windows;
  std::vector<int> parts;
};

/// A slot's groups in the order in which their scales are stacked.
struct GroupedSlot {
  std::vector<BlockGroup> groups;
  int stack_dim = 0;
  bool ragged = false;  ///< groups of one section lie at different leading positions.
};

/// None where parts lie such that their scales are no stack of sections: rows and columns both
/// differ, or they differ along another dimension than sections are stacked along.
std::optional<GroupedSlot> group_blocks(const ModelSpec& model, const Slot& slot,
                                        const std::set<std::string>& input_first);

/// How a group's pieces, over all ranks of its slot, lie towards the blocks.
struct Alignment {
  bool whole = true;  ///< each rank holds each block that it touches whole.
  bool own = true;    ///< moreover, a grid that begins at the rank's piece has the same blocks.
  bool even = true;   ///< every piece begins and ends at an even column, here and there.
};

/// Remembers how cuts cut the ranks of slots.
class PieceTable {
 public:
  explicit PieceTable(const ModelLayout& layout) : layout_(layout) {}
  /// The distinct non-empty pieces of a full dimension over the slot's ranks.
  const std::vector<Interval>& pieces(const Slot& slot, const Section& section, int dim);
  /// What remains of the size of every rank's piece, empty ones too, after division; none where
  /// ranks differ.
  std::optional<Index> remainder(const Slot& slot, const Section& section, int dim,
                                 Index divisor) const;
  /// Blocks of so many rows and columns, 0: all.
  Alignment alignment(const Slot& slot, const BlockGroup& group, Index block_rows,
                      Index block_cols);

 private:
  const ModelLayout& layout_;
  std::map<std::tuple<int, int, int, Index>, std::vector<Interval>> known_;
};

/// vLLM's refine_fp8_moe_block_shape: where ranks' shards of experts, [E, out, in], are no multiple
/// of a format's square blocks, the smaller block that divides blocks, shards and the other width,
/// if it has 32 elements or more; each scale is repeated for its parts. 0: none is needed, or none
/// does.
Index refined_block(PieceTable& pieces, const Slot& slot, const std::optional<GroupedSlot>& groups,
                    const QuantFormat& format);

/// Adds a part of canonical scales to a section in which each of them is there `times` x `times`
/// times. @pre its rows and columns are the section's last dimensions
void add_repeated(const PlacedBox& part, Index times, Section& section);

}  // namespace reshard::quant
