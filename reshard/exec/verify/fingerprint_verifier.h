// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "reshard/exec/direct/held_copies.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/transport/transport.h"

namespace reshard {

struct FingerprintOptions {
  int threads = 0;  ///< as WorkerPool.
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  Progress progress = {};  ///< of this rank's reading.
};

/// fingerprints() where every rank has only its own memory. Collective over a group whose ranks are
/// the layout's, or more; every rank gets the same ModelFingerprints (but for the seconds), those
/// that fingerprints() would give of all ranks' memory. `bytes` are those that all ranks read.
///
/// Every rank reads its memory once. What travels is 32 bytes a tensor over a tree, whatever the
/// number of ranks and pieces; where replicas do not agree, 16 bytes more for each of that tensor's
/// pieces, to name the first one.
///
/// `buffers` may be null on a rank that holds nothing of the layout. The control plane and the
/// transport are of one group; no exchange of other users is under way. Errors, after which the
/// group is aborted: those of fingerprints() on any rank; layouts or forms that differ between the
/// ranks; `deadline`; `aborted` when a rank died.
Result<ModelFingerprints> rank_fingerprints(const ModelLayout& layout, const RankBuffers* buffers,
                                            Transport& transport, ControlPlane& control,
                                            const FingerprintOptions& options = {},
                                            std::span<const StoredForm> forms = {});

/// rank_fingerprints() that is to be called again and again: all that depends on the layout alone
/// is found once. Collective, as it is; the layout, the buffers and the group must outlive it.
class FingerprintVerifier {
 public:
  /// `tensors` by TensorId, empty: all; of the others nothing is read, their prints are 0. Errors:
  /// as rank_fingerprints(), after which the group is aborted.
  static Result<FingerprintVerifier> prepare(const ModelLayout& layout, const RankBuffers* buffers,
                                             Transport& transport, ControlPlane& control,
                                             Deadline deadline,
                                             std::span<const StoredForm> forms = {},
                                             const std::vector<bool>& tensors = {});
  FingerprintVerifier(FingerprintVerifier&&) noexcept;
  FingerprintVerifier& operator=(FingerprintVerifier&&) noexcept;
  ~FingerprintVerifier();

  /// Reads the memory as it is now. The answer is the same as rank_fingerprints()'s, and belongs to
  /// this object until the next call. Allocates nothing per tensor while replicas agree.
  Result<const ModelFingerprints*> run(const FingerprintOptions& options);
  /// The same of memory that is never there all at once: the caller has read it, and gives the
  /// prints of held().copies() as HeldCopies::set() takes them.
  Result<const ModelFingerprints*> run_with(std::span<const Fingerprint> prints, Deadline deadline);
  const HeldCopies& held() const;

 private:
  struct State;
  explicit FingerprintVerifier(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
