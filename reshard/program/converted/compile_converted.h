// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/program/compile.h"

namespace reshard::converted {

/// compile_rank() if a side converts. A receiver that converts gathers a unit of rows at a time,
/// from memory that it reads or in a receive buffer where messages arrive, and converts it from
/// there. A sender that converts makes the rows that a message needs while it packs them; and a
/// receiver that reads that sender's memory makes them itself.
Result<Program> compile_converted(const Planner& planner, const RankPlan& part,
                                  const CompileOptions& options);

/// Implements compile_source().
Result<Program> compile_source_rows(const Planner& planner, Rank rank,
                                    const CompileOptions& options);

}  // namespace reshard::converted
