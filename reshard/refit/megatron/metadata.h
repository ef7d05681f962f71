// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "reshard/model/reported/parameter_metadata.h"
#include "reshard/refit/megatron/module.h"

namespace reshard::megatron {

using reshard::assign_ep_resolved_name_inplace;
using reshard::assign_resolved_name_inplace;
using reshard::detect_expert_index_from_param_name;
using reshard::ParameterMetadata;
using reshard::resolve_global_layer_number_in_name;
using reshard::ShardingDescriptor;

/// One object per distinct list of ranks, shared by all parameters that name it.
using RankListCache = std::map<std::vector<Rank>, GroupRanks>;

/// Position of a rank in a group. Error: it is not in it, which both are named for.
Result<Index> rank_in_group(Rank rank, const std::vector<Rank>& group);

/// "decoder.layers.0" -> "decoder.layers.16" for each module that has a layer_number (17) and whose
/// last name is a number. Of a chunk list "model1.decoder.layers.0" -> "decoder.layers.16" and
/// "model1.decoder" -> "decoder".
LayerPrefixMap build_layer_module_prefix_map(Module& module);

/// What extract_param_metadata knows beside the parameter.
struct ExtractOptions {
  std::optional<Index> num_experts = std::nullopt;
  const LayerPrefixMap* layer_module_prefix_map = nullptr;  ///< null: names stay as they are.
  Index rank_offset = 0;                     ///< added to all ranks of the process groups.
  Index world_size = 1;                      ///< the pipeline group where there is none: all.
  RankListCache* rank_list_cache = nullptr;  ///< null: of this call alone.
};

/// All that a rank reports of one parameter or buffer, its resolved name assigned.
///
/// is_ep: `allreduce` is false; its experts are those of the group ep. The tensor group of an
/// expert's parameter (is_ep, or num_experts is given and a name part is weightK or biasK) is
/// expt_tp, else tp, and the parameter is_tp where that group has more than one rank, whatever its
/// attribute says. Of others it is tp, also where the parameter is not cut: the other side may cut
/// it. `owner_rank` is unique already, process groups get rank_offset added.
///
/// Errors name the parameter: no group dp; is_ep without a group ep; ranks out of range; those of
/// assign_resolved_name_inplace.
Result<ParameterMetadata> extract_param_metadata(const Tensor& param, std::string_view param_name,
                                                 Rank owner_rank,
                                                 const ProcessGroups& pg_collection,
                                                 const ExtractOptions& options = {});

/// The report of a module: all of named_refit_tensors(), rank lists shared. Errors: those above,
/// no pg_collection.
Result<RankMetadata> module_metadata(Module& module, Rank owner_rank,
                                     const ExtractOptions& options);

}  // namespace reshard::megatron
