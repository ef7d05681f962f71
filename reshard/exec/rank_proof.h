// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "reshard/exec/proof.h"
#include "reshard/transport/transport.h"

namespace reshard {

struct RankProofOptions {
  int threads = 0;  ///< as WorkerPool.
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  Progress progress = {};  ///< of this rank's reading.
};

/// fingerprints() where every rank has only its own memory. Collective over a group whose ranks are
/// the layout's, or more; every rank gets the same Prints (but for the seconds), those that
/// fingerprints() would give of all ranks' memory. `bytes` are those that all ranks read.
///
/// Every rank reads its memory once. What travels is 32 bytes a tensor over a tree, whatever the
/// number of ranks and pieces; where replicas do not agree, 16 bytes more for each of that tensor's
/// pieces, to name the first one.
///
/// `buffers` may be null on a rank that holds nothing of the layout. The control plane and the
/// transport are of one group; no exchange of other users is under way. Errors, after which the
/// group is aborted: those of fingerprints() on any rank; layouts or forms that differ between the
/// ranks; `deadline`; `aborted` when a rank died.
Result<Prints> rank_fingerprints(const ModelLayout& layout, const RankBuffers* buffers,
                                 Transport& transport, ControlPlane& control,
                                 const RankProofOptions& options = {},
                                 std::span<const StoredForm> forms = {});

}  // namespace reshard
