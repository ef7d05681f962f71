// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "reshard/exec/rank_buffers.h"
#include "reshard/program/program.h"

namespace reshard {

/// Runs the programs of a group (by rank), or one program of all ranks, in this thread, element by
/// element. It is the definition of what a program does: slow, about one page, and independent of
/// the executor. Staging and scratch begin as garbage; scratch does so again before each tile.
///
/// With no seed, it always takes the first step that may run, of the first rank that has one; with
/// a seed, any, so that a wait that is missing leads to wrong bytes. Returns false if steps are
/// left that never may run. @pre check_structure() holds; the buffers have all tensors of all
/// programs
bool run_slowly(std::span<const Program> programs, const RankBuffers& source,
                const RankBuffers& target, std::optional<std::uint64_t> seed = {});

}  // namespace reshard
