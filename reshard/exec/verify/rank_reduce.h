// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "reshard/transport/transport.h"

namespace reshard {

enum class Reduction { sum, min };

/// Collective over the transport's group. Replaces each value by the sum, modulo 2^64, or the
/// minimum of all ranks' values at that position; every rank has the result. Made for up to some
/// megabytes: a rank sends and receives its values at most log2(size) + 1 times each way.
///
/// `id` names its messages, and may be used for one reduction after another. Errors: those of the
/// transport; `invalid_argument` where ranks give different numbers of values.
Result<> reduce_to_all(std::span<std::uint64_t> values, Reduction reduction, Transport& transport,
                       MessageId id, Deadline deadline);

}  // namespace reshard
