// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>

#include "reshard/model/model_layout.h"
#include "reshard/model/reported/gathered_metadata.h"

namespace reshard {

/// Two layouts of one model, made of what live ranks report.
struct GatheredPair {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const ModelLayout> source, target;
  /// Canonical tensors that the source alone has and that the target does not miss: an output layer
  /// that a target with tied embeddings does without. For PlanOptions::ignore.
  std::set<std::string> ignore;
};

/// The canonical tensors are the parameters under their resolved names, in the order in which the
/// source's ranks report them. Their shape comes from the groups: along partition_dim the members
/// of the tensor parallel group follow each other within each block, and blocks follow each other;
/// a parameter has partition_stride equal blocks, or those of partition_sizes. Members may hold
/// different amounts, and nothing needs to divide. A parameter that is not is_tp is whole on its
/// rank. An expert tensor without a number in its name that is [num_experts / group, ...] is part
/// of one [num_experts, ...]; others are matched by the rank's position in its expert group.
///
/// A target's output_layer.weight without a source comes from embedding.word_embeddings.weight.
///
/// Errors name the parameter: a target parameter without a source (and the rank that wants it);
/// expert groups of equal size with no source at the same position; sizes that are not the same in
/// sum on both sides or between ranks; a member of a tensor parallel group that does not report the
/// parameter; those of assign_resolved_name_inplace.
///
/// Cost: grows with templates times positions in the groups, not with ranks.
Result<GatheredPair> gathered_layouts(const GatheredMetadata& source,
                                      const GatheredMetadata& target);

}  // namespace reshard
