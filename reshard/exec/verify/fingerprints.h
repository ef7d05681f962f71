// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/transform/fingerprint.h"

namespace reshard {

/// Fingerprints of a layout's canonical tensors, computed where the elements are.
struct ModelFingerprints {
  struct Tensor {
    Fingerprint print;         ///< of the whole tensor.
    Index replicas = 0;        ///< least number of ranks that hold any element of it.
    bool agree = true;         ///< all holders of each piece have the same bits.
    std::string disagreement;  ///< when not: "rank 3 differs from rank 1 in [0,64)x[0,128)".
  };
  std::vector<Tensor> tensors;  ///< by TensorId.
  Index bytes = 0;              ///< read.
  double seconds = 0;
};

/// Fingerprints all tensors of the layout from every rank's memory, replicas included: a tensor's
/// print is the sum over its pieces, each taken from one holder and compared with all others.
/// `forms` (by TensorId; empty: the layout's own) says in which form values are fingerprinted:
/// those that the layout stores otherwise are converted first, as a refit does. So a source and a
/// target that store values differently are compared in the target's form. Errors: memory missing;
/// cancelled.
Result<ModelFingerprints> fingerprints(const RankBuffers& buffers, int threads = 0,
                                       const Progress& progress = {},
                                       std::span<const StoredForm> forms = {});

/// How `layout` stores the tensors of its model, by TensorId, for fingerprints of another layout of
/// the same model.
std::vector<StoredForm> forms_of(const ModelLayout& layout);

/// The first way in which the two differ, or success: "tensor 'x': source 0123.. target 4567..", or
/// replicas that disagree. @pre both are of one model
Result<> compare_fingerprints(const ModelSpec& model, const ModelFingerprints& source,
                              const ModelFingerprints& target);

}  // namespace reshard
