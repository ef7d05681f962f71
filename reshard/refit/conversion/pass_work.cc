// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/pass_work.h"

#include <algorithm>
#include <atomic>

namespace reshard::conversion {

PassWork::PassWork(std::vector<Pass*> passes, When when, WorkerPool& pool)
    : passes_(std::move(passes)), pool_(pool) {
  const Pass& pass = *passes_.front();
  for (std::size_t u = 0; u < pass.size(); ++u) {
    const bool joins = pass.needs_amax() && u > 0 && pass.matrix_of(u) == pass.matrix_of(u - 1);
    if (!joins) items_.push_back({u, u});
    items_.back().end = u + 1;
    const RowPlaces at = pass.places(u);
    const RowExtents n = pass.extents(u);
    const std::size_t item = items_.size() - 1;
    if ((when == When::after) == (pass.to() == Pass::To::quantised)) {
      ranges_.push_back({at.values, n.values.bytes, item});
    } else {
      ranges_.push_back({at.data, n.data.bytes, item});
      ranges_.push_back({at.scales, n.scales.bytes, item});
      if (at.factor != nullptr) ranges_.push_back({at.factor, n.factor.bytes, item});
    }
  }
  done_.resize(items_.size());
  units_.reserve(pass.size());
}

void PassWork::restart(int copy) {
  copy_ = passes_.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  std::ranges::fill(done_, char{0});
}

void PassWork::skip() { std::ranges::fill(done_, char{1}); }

/// A single unit is not worth waking the threads.
template <class Work>
void PassWork::for_each_unit(Work&& work) {
  if (units_.size() < 2 || pool_.size() < 2) {
    for (const std::size_t u : units_) work(u);
    return;
  }
  std::atomic<std::size_t> next{0};
  auto body = [&](int) {
    for (std::size_t i = next++; i < units_.size(); i = next++) work(units_[i]);
  };
  pool_.run(body);
}

void PassWork::run(std::span<const std::size_t> items) {
  Pass& pass = *passes_[copy_];
  units_.clear();
  for (const std::size_t item : items) {
    if (done_[item] != 0) continue;
    done_[item] = 1;
    for (std::size_t u = items_[item].first; u < items_[item].end; ++u) units_.push_back(u);
  }
  if (pass.needs_amax()) {
    for_each_unit([&](std::size_t u) { pass.add_amax(u, pass.places(u)); });
    for (const std::size_t item : items) pass.end_amax_of(pass.matrix_of(items_[item].first));
  }
  for_each_unit([&](std::size_t u) { pass.convert(u, pass.places(u)); });
}

void PassWork::run_rest() {
  for (std::size_t i = 0; i < done_.size(); ++i)
    if (done_[i] == 0) run({&i, 1});
}

}  // namespace reshard::conversion
