// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/transform/fingerprint.h"

namespace reshard {

/// Fingerprints of a layout's canonical tensors, computed from the pieces that ranks hold.
struct ModelFingerprints {
  struct Tensor {
    Fingerprint fingerprint;   ///< of the whole tensor.
    Index replicas = 0;        ///< the least number of ranks that hold any one element.
    bool agree = true;         ///< all replicas of each piece have the same bits.
    std::string disagreement;  ///< if not: "rank 3 differs from rank 1 in [0,64)x[0,128)".
  };
  std::vector<Tensor> tensors;  ///< by TensorId.
  Index bytes = 0;              ///< read.
  double seconds = 0;
};

/// Fingerprints all tensors of the layout in every rank's memory, all replicas included: a tensor's
/// fingerprint is the sum over its pieces, each read from one rank and compared with its replicas.
///
/// `forms` (by TensorId; empty: the layout's own) is the form in which values are fingerprinted.
/// Values that the layout stores in another form are converted first, as in a refit; so a source
/// and a target that store values differently are compared in the target's form. `threads` as
/// WorkerPool. Errors: memory missing (named); cancelled.
Result<ModelFingerprints> fingerprints(const RankBuffers& buffers, int threads = 0,
                                       const Progress& progress = {},
                                       std::span<const StoredForm> forms = {});

/// The form in which `layout` stores each tensor, by TensorId: to fingerprint another layout of the
/// same model in it.
std::vector<StoredForm> forms_of(const ModelLayout& layout);

/// Succeeds if both agree. Errors: `corrupt` names the first tensor whose fingerprints differ, or
/// whose replicas disagree. @pre both are of `model`
Result<> compare_fingerprints(const ModelSpec& model, const ModelFingerprints& source,
                              const ModelFingerprints& target);

}  // namespace reshard
