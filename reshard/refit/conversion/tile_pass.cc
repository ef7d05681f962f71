// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/tile_pass.h"

#include <algorithm>

namespace reshard::conversion {
TilePass::TilePass(std::vector<Pass> passes) : passes_(std::move(passes)) {
  const Pass& pass = now();
  const bool quantises = pass.to() == Pass::To::quantised;
  for (std::size_t u = 0; u < pass.size(); ++u) {
    const RowPlaces from = pass.places(u);
    const RowExtents n = pass.extents(u);
    Index at = 0;
    const auto add = [&](const std::byte* begin, const RowExtents::Part& part) {
      ranges_.push_back({begin, part.bytes, at, part.row, part.stride});
      at += lines(part.bytes);
    };
    if (quantises) {
      add(from.values, n.values);
    } else {
      add(from.data, n.data);
      add(from.scales, n.scales);
      if (from.factor != nullptr) add(from.factor, n.factor);
    }
    if (u == 0) each_ = ranges_.size();
    input_bytes_ = std::max(input_bytes_, at);
  }
}

void TilePass::begin(int copy) {
  copy_ = passes_.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  checks_ = false;
}

void TilePass::begin_check(int copy, const CellReplicas& replicas) {
  begin(copy);
  checks_ = true;
  if (!has_fingerprints_) fingerprints_ = TileFingerprints(replicas, *this);
  has_fingerprints_ = true;
  wrong_ = size();
  error_.reset();
}

Result<std::span<const Fingerprint>> TilePass::fingerprints() {
  if (error_) return tl::unexpected(*error_);
  return fingerprints_.sums();
}

std::string TilePass::wrong() const { return wrong_ < size() ? now().name(wrong_) : std::string(); }

/// Where the unit's rows are: input in the scratch memory, output in its own memory.
RowPlaces TilePass::places(std::size_t tile, std::byte* scratch) const {
  RowPlaces at = now().places(tile);
  const auto here = ranges(tile);
  if (now().to() == Pass::To::quantised) {
    at.values = scratch;
  } else {
    at.data = scratch + here[0].at;
    at.scales = scratch + here[1].at;
    if (here.size() > 2) at.factor = scratch + here[2].at;
  }
  return at;
}

void TilePass::consume(int sweep, std::size_t tile, std::byte* scratch) {
  const RowPlaces at = places(tile, scratch);
  if (sweep + 1 < sweeps()) return now().add_amax(tile, at);
  if (!checks_) return now().convert(tile, at);
  if (auto done = fingerprints_.read(tile, scratch); !done) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(done).error();
  }
  if (now().is_converted(tile, at, scratch + input_bytes_)) return;
  std::size_t first = wrong_.load();
  while (tile < first && !wrong_.compare_exchange_weak(first, tile)) {
  }
}

void TilePass::end_sweep(int sweep) {
  if (sweep + 1 < sweeps()) now().end_amax();
}

}  // namespace reshard::conversion
