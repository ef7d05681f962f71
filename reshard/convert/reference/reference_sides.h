// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/convert/layout_pair.h"
#include "reshard/convert/reference/reference_tensors.h"
#include "reshard/refit/session.h"

namespace reshard {

/// The refit whose reference tensors are wanted. Borrows model and pair.
struct ReferenceJob {
  const Model& model;
  const LayoutPair& pair;
  std::uint64_t seed = 0;  ///< of the oracle's values if the model has no weights.
  ConversionSide convert = ConversionSide::receiver;  ///< as in the session.
  Index processes =
      1;  ///< on this host that compute references at the same time, each with its own cache.
};

/// The reference tensors of both sides of a refit that quantises: computed from the model's weights
/// or the oracle, independently of any session.
class ReferenceSides {
 public:
  /// Errors: those of the checkpoint and the layouts. @pre job.pair.quantises()
  static Result<ReferenceSides> of(const ReferenceJob& job);
  ReferenceSides(ReferenceSides&&) noexcept;
  ~ReferenceSides();

  /// The tensors to fill the source with.
  ReferenceTensors& source() { return *source_; }
  /// The tensors that the target must hold after a refit.
  ReferenceTensors& target() { return *target_; }

 private:
  struct Files;
  ReferenceSides();
  std::shared_ptr<Files> files_;  ///< null if the values are the oracle's.
  std::unique_ptr<ReferenceTensors> source_, target_;
};

}  // namespace reshard
