// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/exec/rank_buffers.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/refit/version.h"

namespace reshard {

/// One side of a session, source or target: its layout over all ranks, and this rank's memory of
/// it. Every rank passes both sides' layouts, with equal contents, even if it holds nothing of a
/// side.
///
/// The buffers must be made over this very layout object; the session uses only this rank's local
/// tensors in them. They are borrowed, and must outlive the session and the last access by peers
/// (ControlPlane::quiesce() or Transport::close()). Their addresses must not change, because CUDA
/// graphs and engines hold them; the next refit detects a change.
struct SessionSide {
  /// The layout, if the side stores plain values; null if it is quantised.
  std::shared_ptr<const ModelLayout> layout = nullptr;
  /// The quantised layout, if the side is quantised; otherwise null.
  std::shared_ptr<const QuantisedLayout> quantised = nullptr;
  /// Memory of `layout`, or of `quantised->stored`. Null if this rank holds nothing of the side.
  const RankBuffers* buffers = nullptr;
  /// Target only, with Buffering::doubled: the second copy, of the same layout object.
  const RankBuffers* back = nullptr;
  /// Target only: where the version is published to readers; borrowed. Null: the session owns one,
  /// which dies with it. A session continues from the version found here, so versions outlive
  /// sessions and groups.
  PublishedVersion* published = nullptr;
  /// Why this rank cannot use its memory of this side, if the caller found that out: "" if it can.
  /// The next collective call of the session fails with it on all ranks, and moves nothing.
  std::string trouble = {};

  /// The layout of plain values: `layout`, or `quantised->values`.
  const std::shared_ptr<const ModelLayout>& values() const {
    return quantised != nullptr ? quantised->values : layout;
  }
  /// The layout of the memory: `layout`, or `quantised->stored`.
  const std::shared_ptr<const ModelLayout>& stored() const {
    return quantised != nullptr ? quantised->stored : layout;
  }
};

}  // namespace reshard
