// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/table.h"
#include "reshard/program/form/describe.h"

namespace reshard::cli {

/// The text that `explain` prints of one program: its totals, its peers, its steps by the kind of
/// their work, and the first `most_steps` steps one by one.
std::string program_text(const Program& program, const ProgramLayouts& layouts,
                         std::size_t most_steps, const Style& style);

}  // namespace reshard::cli
