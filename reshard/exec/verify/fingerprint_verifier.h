// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "reshard/exec/verify/cell_replicas.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/transport/transport.h"

namespace reshard {

struct FingerprintOptions {
  int threads = 0;  ///< as WorkerPool.
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  Progress progress = {};  ///< of the bytes that this rank reads.
};

/// fingerprints() for ranks that each have only their own memory. Collective over a group that has
/// at least the layout's ranks. Every rank gets the same ModelFingerprints (except for the
/// seconds), equal to what fingerprints() would compute from all ranks' memory. `bytes` counts all
/// ranks.
///
/// Every rank reads its memory once. A reduction over a tree carries 32 bytes a tensor, whatever
/// the number of ranks and pieces. For tensors whose replicas disagree, another carries 16 bytes a
/// piece to name the first difference.
///
/// `buffers` may be null on a rank that holds nothing of the layout. The control plane and the
/// transport belong to one group, and no other exchange is in progress. Errors, all of which abort
/// the group: those of fingerprints() on any rank; layouts or forms that differ between ranks;
/// `deadline`; `aborted` if a rank died.
Result<ModelFingerprints> rank_fingerprints(const ModelLayout& layout, const RankBuffers* buffers,
                                            Transport& transport, ControlPlane& control,
                                            const FingerprintOptions& options = {},
                                            std::span<const StoredForm> forms = {});

/// rank_fingerprints() for repeated use: prepare() finds everything that depends on the layout
/// alone. Collective in the same way. The layout, the buffers and the group must outlive it.
class FingerprintVerifier {
 public:
  /// `tensors` (by TensorId; empty: all) selects the tensors to read; all others get fingerprint 0.
  /// Errors: as rank_fingerprints(); the group is then aborted.
  static Result<FingerprintVerifier> prepare(const ModelLayout& layout, const RankBuffers* buffers,
                                             Transport& transport, ControlPlane& control,
                                             Deadline deadline,
                                             std::span<const StoredForm> forms = {},
                                             const std::vector<bool>& tensors = {});
  FingerprintVerifier(FingerprintVerifier&&) noexcept;
  FingerprintVerifier& operator=(FingerprintVerifier&&) noexcept;
  ~FingerprintVerifier();

  /// Collective. Reads the memory as it is now; the result is that of rank_fingerprints(), owned by
  /// this object and valid until the next call. Allocates nothing per tensor while replicas agree.
  Result<const ModelFingerprints*> run(const FingerprintOptions& options);
  /// Collective. The same for bytes that are never all in memory at once: the caller has read them
  /// and passes the fingerprints of replicas().all(), as CellReplicas::set() takes them.
  Result<const ModelFingerprints*> run_with(std::span<const Fingerprint> fingerprints,
                                            Deadline deadline);
  /// This rank's pieces of the layout.
  const CellReplicas& replicas() const;

 private:
  struct State;
  explicit FingerprintVerifier(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
