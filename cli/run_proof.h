// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "reshard/exec/rank_buffers.h"

namespace reshard::cli {

/// Proves a refit: sources and destinations of every tensor that both sides hold have the same
/// fingerprint, replicas agree, and where the sources were filled from the oracle of a seed every
/// destination element is compared with it. Errors name the first tensor that is wrong.
Result<> prove_refit(const RankBuffers& source, const RankBuffers& target,
                     std::optional<std::uint64_t> oracle_seed, int threads);

}  // namespace reshard::cli
