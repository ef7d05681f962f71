// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/program/compile.h"
#include "reshard/program/program.h"

namespace reshard {

/// Checks that a program means something, whoever wrote it: enumerators are known; each entry of a
/// table belongs to one op or step, in order; every index is in its table; laws 1 and 2. After it,
/// an executor that knows the buffers' true sizes can run the program without leaving memory.
///
/// Errors: Code::corrupt, which names the rank, the step or table entry and what is wrong. Cost:
/// proportional to the tables; no memory. Not collective.
Result<> check_structure(const Program& program);

/// Bytes of local tensors of a target: disjoint ranges, ascending.
using TargetBytes = std::map<std::pair<Rank, SlotId>, std::vector<Interval>>;

/// The bytes that a plan delivers to some ranks, from the plan's boxes alone. If the target is
/// converted (`after`), the bytes of the other form of what it delivers of its `slots`. Slow:
/// proportional to the rows of all boxes. Errors: those of converted areas.
Result<TargetBytes> delivered_bytes(const Planner& planner, std::span<const Rank> destinations,
                                    const SideConversion& after = {});

/// The expectations that a program is checked against, in addition to its own contents.
struct ProgramExpectations {
  const TargetBytes* delivers = nullptr;  ///< null: law 5 only says that no byte is written twice.
  std::optional<Index> cap;               ///< of staging and scratch. Bytes; none: law 6 is not
                                          ///< checked.
  int threads = 1;                        ///< that have scratch.
};

/// Checks one rank's program: check_structure(), and laws 3 to 6. A program with structure only,
/// whoever wrote it, is safe to check.
///
/// Errors: Code::corrupt, which names the rank, the law, the step, the buffer and the bytes. Cost:
/// time for each run of bytes, the logarithm of the ranges of a buffer, and for each step whose
/// bytes others used before, the steps since then. Not collective.
Result<> check_program(const Program& program, const ProgramExpectations& expected = {});

/// Checks laws 7 and 8 and what a group must agree on: each message has one sender and one
/// receiver, with equal bytes; plan digests, numbers of barriers and round_bits are equal.
/// `programs`: of all ranks, by rank. Errors: as check_program(). Cost: proportional to steps,
/// waits and messages, with a logarithm.
/// @pre check_structure() holds for each
Result<> check_programs(std::span<const Program> programs);

}  // namespace reshard
