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
/// Without a seed, it takes the first step that can run, of the lowest rank that has one; with a
/// seed, a random one, so that a missing wait leads to wrong bytes. Returns false if some steps can
/// never run. @pre check_structure() holds; the buffers have all tensors of all
/// programs
bool run_slowly(std::span<const Program> programs, const RankBuffers& source,
                const RankBuffers& target, std::optional<std::uint64_t> seed = {});

}  // namespace reshard
