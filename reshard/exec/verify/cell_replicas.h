// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/verify/gpu_reader.h"
#include "reshard/plan/replica_map.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// One replica of one cell of a tensor. A rank may hold several, in different places.
struct CellReplica {
  TensorId tensor;
  std::int32_t cell = 0;  ///< index into CellReplicas::cells(tensor).
  Rank rank;
  Strided where;
  const std::byte* data = nullptr;
  Fingerprint fingerprint;
  std::int64_t same_as = -1;  ///< an earlier replica in the same memory, which is read only once.
};

/// The replicas of a layout's cells that ranks hold in this process's memory, or in that of a GPU,
/// and their fingerprints. The cells are derived from the layout alone, so all ranks find the same
/// ones.
class CellReplicas {
 public:
  /// `forms` as in fingerprints(). The layout must outlive this object.
  CellReplicas(const ModelLayout& layout, std::span<const StoredForm> forms);

  /// Finds all replicas of rank `only`, or of every rank of the layout. `tensors` (by TensorId;
  /// empty: all) selects tensors; the others get no replicas. Called once; `buffers` must outlive
  /// this object. Errors: memory missing in `buffers` (null: all of it), or elsewhere than they
  /// say, named; a tensor that cannot be fingerprinted; the driver's.
  Result<> find(const RankBuffers* buffers, std::optional<Rank> only,
                const std::vector<bool>& tensors = {});

  /// Reads every replica once and computes its fingerprint: on the GPU if that has the memory,
  /// after the work that the buffers' stream has. May be called again when the memory has changed.
  /// Errors: cancelled; `deadline`; the driver's.
  Result<> read(int threads, const Progress& progress, Deadline deadline = Deadline::never());
  /// Bytes that read() reads.
  Index bytes() const;

  /// For fingerprints that are computed elsewhere, of layouts that store values in the
  /// fingerprinted form: all replicas, and what their fingerprints depend on.
  std::span<const CellReplica> all() const { return replicas_; }
  const FingerprintKey& key(TensorId id) const { return keys_[id.index()]; }
  int element_bits(const CellReplica& replica) const {
    return bits(conversions_[replica.tensor.index()].from.dtype);
  }
  /// Replaces read(): fingerprints in the order of all(). Those of replicas with `same_as` are
  /// ignored.
  void set(std::span<const Fingerprint> fingerprints);

  /// Disjoint boxes that together are all that is held of a tensor; and the ranks that hold one.
  /// The same on all ranks.
  std::span<const Cell> cells(TensorId id) const {
    return replica_map_.cells(replica_map_.list(id));
  }
  const RankSet& holders(const Cell& cell) const { return sets_[cell.ranks]; }
  /// The least number of ranks that hold any one element of the tensor; 0 if no rank holds any.
  Index replicas(TensorId id) const { return replicas_of_list_[replica_map_.list(id).index()]; }
  /// The tensor's replicas, sorted by cell, rank and place.
  std::span<const CellReplica> of(TensorId id) const {
    return std::span(replicas_).subspan(
        first_replica_[id.index()], first_replica_[id.index() + 1] - first_replica_[id.index()]);
  }

 private:
  /// Some rows of a replica, fingerprinted by one worker.
  struct Unit {
    std::size_t replica = 0;
    Box box;
    Fingerprint fingerprint;
  };

  const std::vector<std::int32_t>& cells_of(TensorId id, std::optional<Rank> only);
  Result<> add(TensorId id, std::int32_t cell, Rank r);
  Result<> prepare_gpu();
  Result<> read_units(int threads, ProgressMeter& meter);
  void mark_shared(std::size_t first);
  void cut_into_units(std::size_t first, const Box& box, int element_bits);
  void share_fingerprints();
  Index unit_bytes(const Unit& unit) const;
  Result<Fingerprint> fingerprint_of(const Unit& unit, std::vector<std::byte>& converted) const;

  const ModelLayout& layout_;
  const RankBuffers* buffers_ = nullptr;
  RankSets sets_;
  ReplicaMap replica_map_;
  std::vector<Conversion>
      conversions_;  ///< by TensorId: from the layout's to the fingerprinted form.
  std::vector<std::vector<std::int32_t>>
      cells_of_list_;  ///< by list: cells that find()'s ranks hold.
  std::vector<bool> list_seen_;
  std::vector<Index> replicas_of_list_;
  std::vector<FingerprintKey> keys_;
  std::vector<CellReplica> replicas_;
  std::vector<std::size_t> first_replica_;
  std::vector<Unit> units_;
  std::optional<verify::GpuReader> gpu_;
};

/// "rank 3 differs from rank 1 in [0,64)x[0,128)"
std::string disagreement(Rank rank, Rank first, const Box& box);

}  // namespace reshard
