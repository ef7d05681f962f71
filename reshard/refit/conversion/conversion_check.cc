// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/conversion_check.h"

#include "reshard/memory/cache_line.h"
#include "reshard/program/converted/converted_rows.h"

namespace reshard::conversion {
namespace {

/// The parts of some rows in the planned form, one behind the other.
std::vector<TileRange> ranges_of(const ConvertedRows& rows, const ConvertedPlan& plan) {
  std::vector<TileRange> out;
  Index next = 0;
  for (std::size_t p = 0; p < kMatrixParts; ++p) {
    const PartRows& part = rows.parts[p];
    const bool is_values = static_cast<MatrixPart>(p) == MatrixPart::values;
    if (is_values != plan.plans_values() || part.slot.value() < 0) continue;
    out.push_back({plan.planned->at(plan.me, part.slot) + part.offset, part.bytes, next, part.row,
                   part.stride});
    next += whole_lines(part.bytes);
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<ConversionCheck>> ConversionCheck::make(const ConvertedPlan& plan) {
  const SideConversion& side = plan.conversion;
  auto out = std::make_unique<ConversionCheck>();
  out->plans_values_ = plan.plans_values();
  const auto units = RESHARD_TRY(converted_rows(side, plan.me, plan.unit_bytes));
  for (const ConvertedRows& rows : units) {
    out->ranges_.push_back(ranges_of(rows, plan));
    out->names_.push_back(&side.layout->values->slot(rows.part(MatrixPart::values).slot).name);
  }
  return out;
}

void ConversionCheck::begin(const CellReplicas& replicas) {
  if (!has_fingerprints_) fingerprints_ = TileFingerprints(replicas, ranges_);
  has_fingerprints_ = true;
  wrong_ = names_.size();
  error_.reset();
}

void ConversionCheck::see(std::size_t unit, const RowPlaces& at) {
  if (auto done = fingerprints_.read(unit, plans_values_ ? at.values : at.data); !done) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(done).error();
  }
}

void ConversionCheck::differs(std::size_t unit) {
  std::size_t first = wrong_.load();
  while (unit < first && !wrong_.compare_exchange_weak(first, unit)) {
  }
}

Result<std::span<const Fingerprint>> ConversionCheck::fingerprints() {
  if (error_) return tl::unexpected(*error_);
  return fingerprints_.sums();
}

std::string ConversionCheck::wrong() const {
  return wrong_ < names_.size() ? *names_[wrong_] : std::string();
}

}  // namespace reshard::conversion
