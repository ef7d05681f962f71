// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/table.h"
#include "reshard/convert/inspect/explain_layout.h"
#include "reshard/io/files/json.h"

namespace reshard::cli {

/// A title with ranks and bytes per rank, and a table of explain_layout().
std::string explanation_text(const ModelLayout& layout, const SlotFiles& files, const Style& style);
/// The same as a JSON object.
Json explanation_json(const ModelLayout& layout, const SlotFiles& files);

}  // namespace reshard::cli
