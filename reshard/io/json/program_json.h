// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/io/files/json.h"
#include "reshard/program/form/describe.h"

/// Programs as JSON, for scripts. The keys are a stable interface; docs/program.md lists them.
namespace reshard {

/// An object with the totals of a program, its digest, and its first `most_steps` steps (if any).
/// @pre the program passes check_structure()
Json::Object program_object(const Program& program, const ProgramLayouts& layouts,
                            std::size_t most_steps);

}  // namespace reshard
