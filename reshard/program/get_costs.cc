// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/get_costs.h"

#include <algorithm>

#include "reshard/layout/clip.h"

namespace reshard::program {
namespace {

double source_bytes_of(const StridedCopy& copy) {
  return static_cast<double>(copy.source_bytes(copy.bytes()));
}

}  // namespace

Index source_runs(const StridedCopy& copy) {
  Index whole = copy.source_bytes(copy.run_bytes);
  int i = copy.num_loops;
  for (; i > 0; --i) {
    const auto& loop = copy.loops[static_cast<std::size_t>(i - 1)];
    if (loop.count != 1 && loop.src_stride != whole) break;
    whole *= loop.count;
  }
  Index runs = 1;
  for (; i > 0; --i) runs *= copy.loops[static_cast<std::size_t>(i - 1)].count;
  return runs;
}

double cost_of_runs(const StridedCopy& copy) {
  return static_cast<double>(source_runs(copy)) * kRunCost + source_bytes_of(copy);
}

double cost_of_sweep(const StridedCopy& copy) {
  return kRunCost + static_cast<double>(source_span(copy).size()) +
         kLocalCost * static_cast<double>(copy.bytes());
}

double cost_of_get(const StridedCopy& copy) {
  if (copy.bytes() == 0) return 0;
  // The inner loops may be dense even if the outer ones (over experts, say) are not.
  double best = cost_of_runs(copy), outer = 1;
  for (StridedCopy inner = copy;; --inner.num_loops) {
    best = std::min(best, outer * cost_of_sweep(inner));
    if (inner.num_loops == 0) return best;
    outer *= static_cast<double>(inner.loops[0].count);
    std::copy(inner.loops.begin() + 1, inner.loops.begin() + inner.num_loops, inner.loops.begin());
  }
}

double cost_of_message(const StridedCopy& copy, Index in_place) {
  const auto bytes = static_cast<double>(copy.bytes());
  const bool large = copy.bytes() >= in_place;
  const bool one_here = large && source_runs(reversed(copy)) == 1;
  const bool one_there = large && source_runs(copy) == 1;
  const double own_message = one_here || one_there ? kMessageCost : 0;
  return own_message + bytes * (1 + (one_here ? 0 : kLocalCost) + (one_there ? 0 : kLocalCost));
}

}  // namespace reshard::program
