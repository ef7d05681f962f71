// SPDX-License-Identifier: Apache-2.0
// The blocks of canonical tensors in slots; internals of quantised_layout.h.
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

/// The size of a tile of swizzled scales, in scales.
inline constexpr Index kSwizzleRows = 128, kSwizzleCols = 4;
/// True if the sections of a slot are stacked by rows. With swizzled scales they are then one
/// matrix, as in engines.
bool is_one_matrix(const Slot& slot);

/// The intervals of a section's full dimensions that a rank holds.
using LocalDims = std::array<Interval, kMaxDims>;
LocalDims local_dims(const ModelLayout& layout, const Slot& slot, const Section& section, Rank r);

/// The size of a block along a dimension of `whole` elements; `block` 0 means all of it.
constexpr Index block_along(Index block, Index whole) {
  return block > 0 ? block : std::max<Index>(1, whole);
}

/// The rows (0) or columns (1) of a part, in the full and in the canonical dimension.
struct Window {
  Interval at;      ///< in the full dimension.
  Index first = 0;  ///< canonical index of at.begin().
  Index whole = 0;  ///< size of the canonical dimension.
  friend bool operator==(const Window&, const Window&) = default;
};

/// The canonical dimensions that are rows and columns of a tensor's matrices: the last two or, for
/// input-first tensors (see QuantChoice), the last and the second.
struct MatrixDims {
  int row = 0, col = 0;
};
/// @pre the tensor has at least two dimensions, an input-first tensor three
MatrixDims matrix_dims(const CanonicalTensor& tensor, const std::set<std::string>& input_first);

/// True if canonical rows are columns of the full tensor; none if the dimensions are not the last
/// two of the full tensor.
std::optional<bool> is_transposed(const Section& section, const PlacedBox& part, MatrixDims dims);

/// Parts of one section with equal windows. Their scales are one section of a scale slot.
struct BlockGroup {
  int section = 0;
  std::array<Window, 2> windows;
  std::vector<int> parts;
};

/// The groups of a slot, in the order in which their scales are stacked.
struct GroupedSlot {
  std::vector<BlockGroup> groups;
  int stack_dim = 0;
  bool ragged = false;  ///< groups of a section are at different leading positions.
};

/// None if the scales of the parts are no stack of sections: both rows and columns differ, or they
/// differ along another dimension than the one along which sections are stacked.
std::optional<GroupedSlot> group_blocks(const ModelSpec& model, const Slot& slot,
                                        const std::set<std::string>& input_first);

/// How the pieces of a group on all ranks of its slot are aligned with blocks.
struct Alignment {
  bool whole = true;  ///< every rank holds whole blocks only.
  bool own = true;    ///< and a grid that begins at the rank's piece has the same blocks.
  Index step = 0;     ///< pieces begin and end at multiples of these columns, locally and
                      ///< canonically; 0: all are empty.
};

/// Caches the pieces into which cuts divide dimensions.
class PieceTable {
 public:
  explicit PieceTable(const ModelLayout& layout) : layout_(layout) {}
  /// The distinct non-empty pieces of a full dimension on the ranks of the slot.
  const std::vector<Interval>& pieces(const Slot& slot, const Section& section, int dim);
  /// The remainder of the piece sizes of all ranks (also of empty pieces) modulo `divisor`; none if
  /// ranks differ.
  std::optional<Index> remainder(const Slot& slot, const Section& section, int dim,
                                 Index divisor) const;
  /// @param block_rows,block_cols size of a block; 0: the whole dimension
  Alignment alignment(const Slot& slot, const BlockGroup& group, Index block_rows,
                      Index block_cols);

 private:
  const ModelLayout& layout_;
  std::map<std::tuple<int, int, int, Index>, std::vector<Interval>> known_;
};

/// vLLM's refine_fp8_moe_block_shape: if shards of experts, [E, out, in], are no multiple of the
/// format's square blocks, the smaller block size that divides blocks, shards and the other width,
/// and has at least 32 elements. Each scale is repeated for the parts of its block. 0: not needed,
/// or no size fits.
Index refined_block(PieceTable& pieces, const Slot& slot, const std::optional<GroupedSlot>& groups,
                    const QuantFormat& format);

/// Adds a part of canonical scales to a section, with each scale repeated `times` x `times`. @pre
/// its rows and columns are the last dimensions of the section
void add_repeated(const PlacedBox& part, Index times, Section& section);

}  // namespace reshard::quant
