// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/model/explicit_slots.h"
#include "reshard/model/families/dtensor.h"
#include "reshard/model/families/local_names.h"

namespace reshard::families {

/// The maximal number of ranks of a device mesh; ranks are below it.
inline constexpr Index kMaxRanks = Index{1} << 20;

/// A mesh dimension that cuts a tensor dimension.
struct AppliedShard {
  int mesh_dim = 0;
  Index split_factor = 1;
  friend auto operator<=>(const AppliedShard&, const AppliedShard&) = default;
};
/// Per dimension of the stored tensor: the shards that cut it, in the order of application.
using TensorShards = std::array<std::vector<AppliedShard>, kMaxDims>;

/// Adds the local tensors of torch meshes to a builder. A tensor becomes one slot with cuts if each
/// rank holds one run of each dimension, given by a closed rule (checked against local_runs for
/// every coordinate); otherwise one slot per distinct local tensor.
class DTensorSlots {
 public:
  /// Borrows the builder.
  explicit DTensorSlots(LayoutBuilder& builder) : b_(builder), explicit_(builder) {}

  /// Adds a mesh with its ranks moved up by `offset` and returns its number. Errors: a shape that
  /// does not match the ranks; ranks that are repeated, negative or not below kMaxRanks.
  Result<std::size_t> add_mesh(const DTensorMesh& mesh, Index offset);
  /// Adds a canonical tensor under a local name, stored as `dtype` if given. Errors: the name is in
  /// use on a rank; more pieces than a layout may have (2^22). @pre the mesh dimensions of the
  /// shards exist, and each is used once
  Result<> add(std::size_t mesh, TensorId tensor, const std::string& name,
               const TensorShards& shards, std::optional<DType> dtype = std::nullopt);
  /// The same for several canonical tensors stacked into one, whose dimensions the shards cut.
  Result<> add_stack(std::size_t mesh, const Section& stack, const std::string& name,
                     const TensorShards& shards, std::optional<DType> dtype = std::nullopt);
  /// Adds the remaining slots. To be called once, after all tensors.
  void finish() { explicit_.finish(); }

 private:
  struct MeshUse {
    std::vector<Index> shape;
    std::vector<Rank> ranks;
    RankSet set;
    std::optional<MeshId> closed;  ///< if the ranks are consecutive.
  };
  /// A dimension of the stored tensor: canonical dimensions [first, first + count).
  struct StoredDim {
    int first = 0, count = 1;
    Index extent = 1;
    Index minor = 1;  ///< stored indices per index of the first canonical dimension.
  };
  using CutKey = std::tuple<std::size_t, Index, Index, std::vector<AppliedShard>>;
  struct Piece;
  struct LocalDim;

  static std::vector<StoredDim> stored_dims(const CanonicalTensor& tensor);
  static Index coordinate(const MeshUse& mesh, std::size_t rank, int dim);
  std::vector<Index> coordinates(const MeshUse& mesh, std::size_t rank,
                                 const std::vector<AppliedShard>& shards) const;
  std::vector<Interval> runs(const MeshUse& mesh, const StoredDim& dim,
                             const std::vector<AppliedShard>& shards,
                             const std::vector<Index>& at) const;
  std::optional<CutId> closed_cut(std::size_t mesh, const StoredDim& dim,
                                  const std::vector<AppliedShard>& shards);
  std::optional<CutId> find_cut(const MeshUse& mesh, const StoredDim& dim,
                                const std::vector<AppliedShard>& shards);
  bool add_closed(std::size_t mesh, TensorId tensor, const std::string& name,
                  const std::vector<StoredDim>& dims, const TensorShards& shards);
  Result<> add_explicit(const MeshUse& mesh, TensorId tensor, const std::string& name,
                        const std::vector<StoredDim>& dims, const TensorShards& shards);
  /// Ranks by their coordinates on the mesh dimensions that cut each tensor dimension.
  using RankClasses = std::map<std::vector<std::vector<Index>>, RankSet>;
  RankClasses rank_classes(const MeshUse& mesh, const std::vector<StoredDim>& dims,
                           const TensorShards& shards) const;
  ExplicitTensor named(TensorId tensor, const std::string& name) const;
  Result<> add_stacked_ranks(const MeshUse& mesh, const Section& stack, const std::string& name,
                             const std::vector<StoredDim>& dims, const TensorShards& shards);
  Result<> count_pieces(std::size_t more);
  Result<ExplicitTensor> local_tensor(TensorId tensor, const std::string& name,
                                      const std::vector<StoredDim>& dims,
                                      const std::vector<std::vector<Interval>>& held);

  LayoutBuilder& b_;
  ExplicitSlots explicit_;
  LocalNames names_;
  std::vector<MeshUse> meshes_;
  std::map<CutKey, std::optional<CutId>> cuts_;
  std::size_t num_pieces_ = 0;
  std::optional<DType> dtype_;  ///< of the tensor being added.
};

}  // namespace reshard::families
