// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// The placement of a tensor on one dimension of a torch DeviceMesh. Weights have no partial
/// placements.
struct Placement {
  enum class Kind : std::uint8_t {
    replicate,
    shard,          ///< as torch.chunk: ceil(m / n) each, then the rest, then nothing.
    strided_shard,  ///< split_factor chunks, then each chunk like `shard`.
  };
  Kind kind = Kind::replicate;
  int dim = 0;  ///< of the stored tensor; negative counts from the last.
  Index split_factor = 1;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// The largest split factor of a strided shard.
inline constexpr Index kMaxSplitFactor = Index{1} << 16;

/// Parses the spellings of torch: "R", "Replicate()"; "S(0)", "Shard(dim=0)"; "_S(0, 2)", "_S(0,
/// sf=2)", "_StridedShard(dim=0, sf=2)", "_StridedShard(dim=0, split_factor=2)".
Result<Placement> parse_placement(std::string_view text);
/// "R", "S(0)", "_S(0, 2)".
std::string to_string(const Placement& placement);

/// A DeviceMesh: ranks in row-major order, the last dimension fastest.
struct DTensorMesh {
  std::string name;
  std::vector<Index> shape;                 ///< 1 to kMaxDims dimensions, each 1 or more.
  std::vector<Rank> ranks;                  ///< as many as the product of the shape; distinct.
  std::vector<std::string> dim_names = {};  ///< one per dimension, or empty: dim0, dim1, ...
};

/// Places the tensors that match a pattern on a mesh.
struct DTensorRule {
  std::string match;                  ///< see Rule::match.
  std::string name;                   ///< see Rule::name.
  std::size_t mesh = 0;               ///< index into DTensorSet::meshes.
  std::vector<Placement> placements;  ///< one per dimension of the mesh.
  /// Applies only to tensors whose `number`-th wildcard (from 1) matched a number in [from, to); 0:
  /// to all tensors.
  int number = 0;
  Index from = 0, to = 0;
};

/// A file of DTensor placements. The first rule that matches a tensor applies.
struct DTensorSet {
  std::vector<DTensorMesh> meshes;
  std::vector<DTensorRule> rules;
};

/// A tensor on a mesh: the mesh, by its number in a list, a placement for each dimension of it, and
/// the dtype of the local tensors.
struct PlacedTensor {
  std::size_t mesh = 0;
  std::vector<Placement> placements;
  DType dtype = DType::bf16;
};

/// A placement that cuts a given tensor dimension: the size of the mesh dimension, and the split
/// factor (1 for a plain shard).
struct DimShard {
  Index size = 1;
  Index split_factor = 1;
};

/// The indices of [0, extent) that a rank holds, as runs, in the order in which it stores them.
/// `shards` is in the order of the mesh dimensions; each applies to what the previous ones left.
/// `coordinates[i]` is the rank's coordinate on the mesh dimension of shards[i]. This is the
/// definition (torch 2.13, placement_types.py: Shard and _StridedShard). Runs are not empty and do
/// not touch.
std::vector<Interval> local_runs(Index extent, std::span<const DimShard> shards,
                                 std::span<const Index> coordinates);

/// The order, as positions in `shards`, in which plain shards over the same mesh dimensions hold
/// the same indices if all sizes divide: a strided shard comes after other shards whose sizes
/// multiply to its split factor. Empty if there is no such order.
std::vector<int> plain_order(std::span<const DimShard> shards);

}  // namespace reshard
