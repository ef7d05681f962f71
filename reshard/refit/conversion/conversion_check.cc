// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/conversion_check.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace reshard::conversion {
namespace {

/// The parts of each unit in one of its forms, one behind the other.
TileRanges ranges_of(const Pass& pass, bool values) {
  TileRanges out(pass.size());
  for (std::size_t u = 0; u < pass.size(); ++u) {
    const RowPlaces at = pass.places(u);
    const RowExtents n = pass.extents(u);
    Index next = 0;
    const auto add = [&](const std::byte* begin, const RowExtents::Part& part) {
      out[u].push_back({begin, part.bytes, next, part.row, part.stride});
      next += lines(part.bytes);
    };
    if (values) {
      add(at.values, n.values);
    } else {
      add(at.data, n.data);
      add(at.scales, n.scales);
      if (at.factor != nullptr) add(at.factor, n.factor);
    }
  }
  return out;
}

}  // namespace

Result<> TargetCheck::begin(int copy, const CellReplicas& replicas, int workers) {
  copy_ = passes_.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  const Pass& pass = now();
  if (!has_fingerprints_)
    fingerprints_ = TileFingerprints(replicas, ranges_of(pass, pass.to() == Pass::To::quantised));
  has_fingerprints_ = true;
  consumed_.assign(static_cast<std::size_t>(workers), 0);
  scratch_stride_ = lines(pass.scratch_bytes());
  if (scratch_.size() < scratch_stride_ * workers)
    scratch_ = RESHARD_TRY(HostBuffer::allocate(scratch_stride_ * workers));
  wrong_ = pass.size();
  error_.reset();
  return {};
}

void TargetCheck::consume(std::size_t unit, const RowPlaces& at, float amax, int worker) {
  consumed_[static_cast<std::size_t>(worker)] = unit;
  if (now().needs_amax()) now().set_amax(unit, amax);
  const std::byte* const input = now().to() == Pass::To::quantised ? at.values : at.data;
  if (auto done = fingerprints_.read(unit, input); !done) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(done).error();
  }
  if (!parts_ && !now().is_converted(unit, at, scratch_.data() + scratch_stride_ * worker))
    found_wrong(unit);
}

void TargetCheck::deliver(std::span<const CopyTask> parts, int worker) {
  bool equal = true;
  for (const CopyTask& part : parts)
    for_each_run(part.copy, [&](Index src, Index dst, Index bytes) {
      equal = equal &&
              std::memcmp(part.src + src, part.dst + dst, static_cast<std::size_t>(bytes)) == 0;
    });
  if (!equal) found_wrong(consumed_[static_cast<std::size_t>(worker)]);
}

void TargetCheck::found_wrong(std::size_t unit) {
  std::size_t first = wrong_.load();
  while (unit < first && !wrong_.compare_exchange_weak(first, unit)) {
  }
}

Result<std::span<const Fingerprint>> TargetCheck::fingerprints() {
  if (error_) return tl::unexpected(*error_);
  return fingerprints_.sums();
}

std::string TargetCheck::wrong() const {
  return wrong_ < now().size() ? now().name(wrong_) : std::string();
}

Result<std::span<const Fingerprint>> SourceCheck::read(const CellReplicas& replicas,
                                                       WorkerPool& pool,
                                                       const ControlPlane& control,
                                                       Deadline deadline) {
  const bool values = pass_.to() == Pass::To::values;
  if (!has_fingerprints_) fingerprints_ = TileFingerprints(replicas, ranges_of(pass_, values));
  has_fingerprints_ = true;
  const Index each = lines(pass_.scratch_bytes());
  HostBuffer scratch = RESHARD_TRY(HostBuffer::allocate(each * pool.size()));
  std::mutex mutex;
  std::optional<Error> error;
  RESHARD_TRY(pass_.for_each(pool, control, deadline, [&](std::size_t unit, int worker) {
    RowPlaces at = pass_.places(unit);
    std::byte* const into = scratch.data() + each * worker;
    pass_.place_output(unit, into, at);
    pass_.convert(unit, at);
    if (auto done = fingerprints_.read(unit, into); !done) {
      const std::lock_guard lock(mutex);
      error = std::move(done).error();
    }
  }));
  if (error) return tl::unexpected(*std::move(error));
  return fingerprints_.sums();
}

}  // namespace reshard::conversion
