// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "reshard/megatron/module.h"
#include "reshard/model/reported/parameter_metadata.h"

namespace reshard::megatron {

using reshard::assign_ep_resolved_name_inplace;
using reshard::assign_resolved_name_inplace;
using reshard::detect_expert_index_from_param_name;
using reshard::ParameterMetadata;
using reshard::resolve_global_layer_number_in_name;
using reshard::ShardingDescriptor;

/// One object per distinct list of ranks, shared by all parameters that use it.
using RankListCache = std::map<std::vector<Rank>, GroupRanks>;

/// The position of a rank in a group. Errors: it is not in the group (both are named).
Result<Index> rank_in_group(Rank rank, const std::vector<Rank>& group);

/// Maps "decoder.layers.0" to "decoder.layers.16" for each module whose name ends in a number and
/// that has a layer_number (here 17). For a chunk list also "model1.decoder.layers.0" to
/// "decoder.layers.16", and "model1.decoder" to "decoder".
LayerPrefixMap build_layer_module_prefix_map(Module& module);

/// The options of extract_param_metadata().
struct ExtractOptions {
  std::optional<Index> num_experts = std::nullopt;
  const LayerPrefixMap* layer_module_prefix_map = nullptr;  ///< null: names do not change.
  Index rank_offset = 0;  ///< added to all ranks of the process groups.
  Index world_size = 1;   ///< the pipeline group, if there is none, is all of it.
  RankListCache* rank_list_cache = nullptr;  ///< null: a cache for this call only.
};

/// The metadata that a rank reports of one parameter or buffer, with its resolved name.
///
/// is_ep is true if the attribute `allreduce` is false; the expert group is then `ep`. A parameter
/// is an expert's if is_ep, or if num_experts is set and a part of its name is weightK or biasK.
/// The tensor group of an expert's parameter is `expt_tp`, or `tp` if there is none; the parameter
/// is is_tp if that group has several ranks, whatever its attribute says. For all others it is
/// `tp`, even if the parameter is not cut, because the other side may cut it. rank_offset is added
/// to process groups, but not to `owner_rank`, which is already unique.
///
/// Errors name the parameter: no group `dp`; is_ep without a group `ep`; ranks out of range; those
/// of assign_resolved_name_inplace().
Result<ParameterMetadata> extract_param_metadata(const Tensor& param, std::string_view param_name,
                                                 Rank owner_rank,
                                                 const ProcessGroups& pg_collection,
                                                 const ExtractOptions& options = {});

/// The metadata of all named_refit_tensors() of a module, which share rank lists. Errors: those
/// above; no pg_collection.
Result<RankMetadata> module_metadata(Module& module, Rank owner_rank,
                                     const ExtractOptions& options);

}  // namespace reshard::megatron
