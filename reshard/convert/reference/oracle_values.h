// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/transform/oracle.h"

/// Values that anybody can compute from a tensor's name and an element's position: they fill
/// sources that have no weights, and tell of every destination element whether it is right.
namespace reshard {

/// Fills every canonical element in the buffers, in the form in which the layout stores it; padding
/// stays as it is.
Result<> fill_from_oracle(const RankBuffers& buffers, std::uint64_t seed, int threads,
                          const Progress& progress);

/// Writes the canonical elements of one local tensor that begins at `data`, in the form in which
/// the layout stores them, by way of the forms `via` where there are any (an entry per tensor):
/// what a source that stores values so hands on. Padding stays as it is.
Result<> fill_local_from_oracle(const Oracle& oracle, const ModelLayout& layout, Rank r,
                                SlotId slot, const std::vector<StoredForm>& via, std::byte* data);

/// Error naming the first rank, tensor and element found that is not the oracle's, as a source that
/// stores values in the forms `from` hands it on. Looks only at the tensors that `which` says. @pre
/// `from` and `which` have an entry per tensor of the model
Result<> check_against_oracle(const RankBuffers& buffers, const std::vector<StoredForm>& from,
                              const std::vector<bool>& which, std::uint64_t seed, int threads,
                              const Progress& progress);

}  // namespace reshard
