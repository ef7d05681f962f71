// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/replica_map.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// One copy of one cell of a tensor: a rank may hold several, at different places.
struct HeldCopy {
  TensorId tensor;
  std::int32_t cell = 0;  ///< position in HeldCopies::cells(tensor).
  Rank rank;
  Strided where;
  const std::byte* data = nullptr;
  Fingerprint print;
  std::int64_t same_as = -1;  ///< an earlier copy at the same address, which is not read again.
};

/// The copies that ranks of this process hold of a layout's tensors, and their fingerprints. The
/// pieces of a proof, decided from the layout alone: every rank finds the same cells.
class HeldCopies {
 public:
  /// `forms` as fingerprints() takes them. The layout must outlive this.
  HeldCopies(const ModelLayout& layout, std::span<const StoredForm> forms);

  /// Finds all copies of these ranks: of one rank, or of every rank of the layout. `tensors` by
  /// TensorId, empty: all; the others have no copies. Errors: memory missing in `buffers` (null has
  /// none); a tensor that has no fingerprint.
  Result<> find(const RankBuffers* buffers, std::optional<Rank> only,
                const std::vector<bool>& tensors = {});

  /// Reads every copy once; may be called again, for what the memory holds then. Errors: cancelled;
  /// `deadline`.
  Result<> read(int threads, const Progress& progress, Deadline deadline = Deadline::never());
  /// Bytes that read() reads.
  Index bytes() const;

  /// For prints that are made elsewhere, of layouts whose form is the printed one: all copies, and
  /// what their prints are made with.
  std::span<const HeldCopy> copies() const { return copies_; }
  const FingerprintKey& key(TensorId id) const { return keys_[id.index()]; }
  int element_bits(const HeldCopy& copy) const {
    return bits(conversions_[copy.tensor.index()].from.dtype);
  }
  /// Instead of read(): prints in the order of copies(); of copies at the address of earlier ones
  /// they are not looked at.
  void set(std::span<const Fingerprint> prints);

  /// Disjoint boxes that make up what is held of a tensor, and who holds them. On every rank alike.
  std::span<const Cell> cells(TensorId id) const { return holdings_.cells(holdings_.list(id)); }
  const RankSet& holders(const Cell& cell) const { return sets_[cell.ranks]; }
  /// Least number of ranks that hold any element of the tensor; 0 when nobody holds any.
  Index replicas(TensorId id) const { return replicas_of_list_[holdings_.list(id).index()]; }
  /// Sorted by cell, then rank, then place.
  std::span<const HeldCopy> of(TensorId id) const {
    return std::span(copies_).subspan(first_copy_[id.index()],
                                      first_copy_[id.index() + 1] - first_copy_[id.index()]);
  }

 private:
  /// Some rows of a copy, fingerprinted by one worker.
  struct Unit {
    std::size_t copy = 0;
    Box box;
    Fingerprint print;
  };

  const std::vector<std::int32_t>& cells_of(TensorId id, std::optional<Rank> only);
  Result<> add(const RankBuffers* buffers, TensorId id, std::int32_t cell, Rank r);
  void mark_shared(std::size_t first);
  void cut_into_units(std::size_t first, const Box& box, int element_bits);
  void share_prints();
  Index unit_bytes(const Unit& unit) const;
  Result<Fingerprint> print_of(const Unit& unit, std::vector<std::byte>& converted) const;

  const ModelLayout& layout_;
  RankSets sets_;
  ReplicaMap holdings_;
  std::vector<Conversion> conversions_;  ///< by TensorId: from the layout's form to the printed.
  std::vector<std::vector<std::int32_t>> cells_of_list_;  ///< by list: those of find()'s ranks.
  std::vector<bool> list_seen_;
  std::vector<Index> replicas_of_list_;
  std::vector<FingerprintKey> keys_;
  std::vector<HeldCopy> copies_;
  std::vector<std::size_t> first_copy_;
  std::vector<Unit> units_;
};

/// "rank 3 differs from rank 1 in [0,64)x[0,128)"
std::string disagreement(Rank rank, Rank first, const Box& box);

}  // namespace reshard
