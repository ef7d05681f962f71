// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/exec/rank_buffers.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/refit/version.h"

namespace reshard {

/// One side of a session on one rank: what the side is on all ranks, and where this rank's part
/// lies. Every rank gives both sides' layouts, those of equal contents on every rank, also where it
/// holds nothing of them.
///
/// Buffers are made over this very layout object, hold this rank's local tensors only (others' are
/// not looked at), are borrowed and must outlive the session and its last use by peers
/// (ControlPlane::quiesce() or Transport::close()). Their addresses stay as they are: CUDA graphs
/// and engines hold them. One that changes is noticed by the next refit.
struct SessionSide {
  /// What is stored, where it is stored as plain numbers; where it is quantised, leave it null.
  std::shared_ptr<const ModelLayout> layout = nullptr;
  /// What is stored, where it is quantised; else null.
  std::shared_ptr<const QuantisedLayout> quantised = nullptr;
  /// Of `layout`, or of `quantised->stored`. Null where this rank holds nothing of the side.
  const RankBuffers* buffers = nullptr;
  /// Target of a session of two copies: the second one, of the same layout object.
  const RankBuffers* back = nullptr;
  /// Target: where readers look, borrowed; null: the session has one of its own, that dies with it.
  /// A session continues what the word says, so that versions outlive sessions and groups.
  PublishedVersion* published = nullptr;

  /// The layout of plain values: `layout`, or `quantised->values`.
  const std::shared_ptr<const ModelLayout>& values() const {
    return quantised != nullptr ? quantised->values : layout;
  }
  /// The layout of what is in memory: `layout`, or `quantised->stored`.
  const std::shared_ptr<const ModelLayout>& stored() const {
    return quantised != nullptr ? quantised->stored : layout;
  }
};

}  // namespace reshard
