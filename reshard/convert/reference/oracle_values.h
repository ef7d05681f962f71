// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/transform/oracle.h"

/// Values that follow from a tensor's name and an element's position alone. They fill sources
/// without weights, and every destination element can be checked against them.
namespace reshard {

/// Fills every canonical element in the buffers, in the form in which the layout stores it. Does
/// not touch padding.
Result<> fill_from_oracle(const RankBuffers& buffers, std::uint64_t seed, int threads,
                          const Progress& progress);

/// Writes the canonical elements of the local tensor at `data`, in the form in which the layout
/// stores them. `via`, an entry per tensor or empty: converts through these forms first, as a
/// source that stores them would pass them on. Does not touch padding.
Result<> fill_local_from_oracle(const Oracle& oracle, const ModelLayout& layout, Rank r,
                                SlotId slot, const std::vector<StoredForm>& via, std::byte* data);

/// Compares elements with the oracle's, passed on by a source that stores the forms `from`. The
/// error names the first rank, tensor and element found that differs. Skips tensors that `which`
/// excludes. @pre `from` and `which` have an entry per tensor of the model
Result<> check_against_oracle(const RankBuffers& buffers, const std::vector<StoredForm>& from,
                              const std::vector<bool>& which, std::uint64_t seed, int threads,
                              const Progress& progress);

}  // namespace reshard
