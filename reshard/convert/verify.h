// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/exec/progress.h"
#include "reshard/index/interval.h"

namespace reshard {

struct VerifyOptions {
  std::string a, b;                   ///< checkpoints: folders or files.
  std::set<std::string> ignore = {};  ///< patterns of tensors not to compare.
  /// ModelOptions::prefix of each side that is a torch.distributed.checkpoint.
  std::optional<std::string> prefix = {};
  std::vector<std::string> merge = {};  ///< ModelOptions::merge of `a`.
  int threads = 0;                      ///< 0: one per core that this process may use.
  Progress progress = {};               ///< bytes of one checkpoint, then of the other.
};

/// One side of a comparison.
struct VerifiedCheckpoint {
  std::string path;    ///< as given.
  std::string layout;  ///< the checkpoint's own.
  Index tensors = 0;   ///< as stored: data and scales of quantised tensors count separately.
  Index bytes = 0;     ///< read.
  double seconds = 0;  ///< of reading and fingerprinting.
};

/// A tensor of both checkpoints that differs: dtype, shape and fingerprint of each, or how its
/// replicas disagree.
struct TensorDifference {
  std::string name, a, b;
};

struct VerifyReport {
  VerifiedCheckpoint a, b;
  Index same = 0;  ///< tensors that agree in every bit.
  std::vector<TensorDifference> differing;
  std::vector<std::string> only_a, only_b;
  /// Tensors stored in another shape than their layout's or config's, a line each.
  std::vector<std::string> other_shapes;
  Index converted = 0;               ///< tensors of A compared in the form in which B stores them.
  std::vector<std::string> ignored;  ///< not compared: asked for, or none of the model's.
  Index left_out =
      0;  ///< scales of inputs, orders of columns and shapes that one side's layout does not keep.

  bool equal() const {
    return differing.empty() && only_a.empty() && only_b.empty() && other_shapes.empty();
  }
};

/// Compares two checkpoints in any layouts by fingerprints of their canonical tensors. What A
/// stores in another dtype or value map is compared as a refit from A to B would leave it. A
/// difference is not an error. Errors: those of opening and reading; an input that changed
/// meanwhile; `aborted` if `progress` cancelled.
Result<VerifyReport> verify_checkpoints(const VerifyOptions& options);

}  // namespace reshard
