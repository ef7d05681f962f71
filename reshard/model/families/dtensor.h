// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// What one dimension of a torch DeviceMesh does to a tensor. Partial sums are no weights.
struct Placement {
  enum class Kind : std::uint8_t {
    replicate,
    shard,          ///< torch.chunk: ceil(m / n) each, then a rest, then nothing.
    strided_shard,  ///< split_factor chunks first, then each of these like `shard`.
  };
  Kind kind = Kind::replicate;
  int dim = 0;  ///< of the stored tensor; negative counts from the last.
  Index split_factor = 1;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Most chunks that a strided shard may make.
inline constexpr Index kMaxSplitFactor = Index{1} << 16;

/// torch's own spellings: "R", "Replicate()"; "S(0)", "Shard(dim=0)"; "_S(0, 2)", "_S(0, sf=2)",
/// "_StridedShard(dim=0, sf=2)", "_StridedShard(dim=0, split_factor=2)".
Result<Placement> parse_placement(std::string_view text);
/// "R", "S(0)", "_S(0, 2)".
std::string to_string(const Placement& placement);

/// A DeviceMesh: ranks in row-major order, the last dimension fastest.
struct DTensorMesh {
  std::string name;
  std::vector<Index> shape;                 ///< 1 to kMaxDims dimensions, each 1 or more.
  std::vector<Rank> ranks;                  ///< as many as the shape's product, distinct.
  std::vector<std::string> dim_names = {};  ///< one for each dimension, or none: dim0, dim1, ...
};

/// Which tensors live on which mesh in which way.
struct DTensorRule {
  std::string match;                  ///< as Rule::match.
  std::string name;                   ///< as Rule::name.
  std::size_t mesh = 0;               ///< position among the file's meshes.
  std::vector<Placement> placements;  ///< one per dimension of the mesh.
  /// Only tensors whose `number`-th wildcard (from 1; 0: any tensor) matched a number in [from,
  /// to).
  int number = 0;
  Index from = 0, to = 0;
};

/// A file of DTensor placements; the first rule that matches a tensor decides.
struct DTensorSet {
  std::vector<DTensorMesh> meshes;
  std::vector<DTensorRule> rules;
};

/// A placement that cuts a given dimension of a tensor: the mesh dimension's size, and the chunks
/// made first (1: a plain shard).
struct DimShard {
  Index size = 1;
  Index split_factor = 1;
};

/// The indices of [0, extent) that a rank holds, in the order in which it stores them, as runs.
/// `shards` in the order of the mesh's dimensions, each applied to what the ones before left;
/// `coordinates[i]` is the rank's on the dimension of shards[i]. This is the definition (torch
/// 2.13, placement_types.py: Shard and _StridedShard); no run is empty, none touches the next.
std::vector<Interval> local_runs(Index extent, std::span<const DimShard> shards,
                                 std::span<const Index> coordinates);

/// The order, as positions in `shards`, in which plain shards over the same mesh dimensions would
/// hold the same where everything divides: a strided shard stands behind so many others that their
/// sizes multiply to its split factor. Empty where there is no such order.
std::vector<int> plain_order(std::span<const DimShard> shards);

}  // namespace reshard
