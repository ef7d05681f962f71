// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>

#include "reshard/model/model_layout.h"
#include "reshard/model/reported/gathered_metadata.h"

namespace reshard {

/// Two layouts of one model, built from the reports of live ranks.
struct GatheredPair {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const ModelLayout> source, target;
  /// Canonical tensors of the source that the target does not need: an output layer, if the target
  /// has tied embeddings. For PlanOptions::ignore.
  std::set<std::string> ignore;
};

/// Builds the layouts of both sides from what their ranks report. The canonical tensors are the
/// parameters under their resolved names, in the order in which the source's ranks report them.
/// Shapes follow from the groups: along partition_dim, the members of the tensor parallel group
/// follow each other within each block, and blocks follow each other; a parameter has
/// partition_stride equal blocks, or the blocks of partition_sizes. Members may hold different
/// amounts; no size needs to divide. A parameter without is_tp is whole on its rank. An expert
/// tensor without a number in its name and with shape [num_experts / group, ...] is part of one
/// tensor [num_experts, ...]; other expert tensors without a number are matched by the rank's
/// position in its expert group.
///
/// An output_layer.weight of the target without a source is filled from
/// embedding.word_embeddings.weight.
///
/// Errors name the parameter: a target parameter without a source (and a rank that needs it);
/// expert groups of equal size without a source at the same position; total sizes that differ
/// between both sides or between ranks; a member of a tensor parallel group that does not report
/// the parameter; those of assign_resolved_name_inplace.
///
/// Cost: grows with templates times positions in the groups, not with ranks.
Result<GatheredPair> gathered_layouts(const GatheredMetadata& source,
                                      const GatheredMetadata& target);

}  // namespace reshard
