// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/table.h"
#include "reshard/convert/conversion_routes.h"
#include "reshard/convert/layout_pair.h"
#include "reshard/io/files/json.h"
#include "reshard/plan/summary.h"

/// Text that several commands print of a model, a pair of layouts and the plan between them.
namespace reshard::cli {

/// "2 tensors of the checkpoint left out, such as '...'" @pre `names` is not empty
std::string left_out_text(const std::vector<std::string>& names);
/// "qwen3-4b: 36 layers, 4.02 B parameters in 398 tensors, 8.04 GB"
std::string model_line(const Model& model);
/// Two rows: each side's layout, its ranks and their bytes.
Table sides_table(const LayoutPair& pair);
/// A line for each change of values and for each tensor left out; empty for most plans.
std::string notes_text(const LayoutPair& pair, const Style& style);
/// The totals of a plan. `relays`: Planner::relays().
Table summary_table(const PlanSummary& plan, const std::optional<RelaySummary>& relays = {});

Table conversion_table(const std::vector<ConversionRow>& rows);
Json conversion_json(const std::vector<ConversionRow>& rows);

}  // namespace reshard::cli
