// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "reshard/transport/transport.h"

namespace reshard::verify {

enum class Reduction { sum, min };

/// Collective over the transport's group. Replaces each value by the sum (modulo 2^64) or the
/// minimum of all ranks' values at that position, on every rank. Meant for up to some megabytes: a
/// rank sends and receives its values at most log2(size) + 1 times each way.
///
/// `id` identifies the messages; consecutive reductions may use the same one. Errors: those of the
/// transport; `invalid_argument` if ranks pass different numbers of values.
Result<> reduce_to_all(std::span<std::uint64_t> values, Reduction reduction, Transport& transport,
                       MessageId id, Deadline deadline);

}  // namespace reshard::verify
