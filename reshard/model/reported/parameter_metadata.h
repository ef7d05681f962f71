// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"
#include "reshard/model/families/transformers_modules.h"

/// Reports of ranks about their live modules, with the names and meanings of Megatron-Core's
/// resharding (core.resharding.utils).
namespace reshard {

/// The ranks of a process group in the group's order, shared by all parameters of the group; null
/// for parameters without one. Ranks are global: rank offsets are already added.
using GroupRanks = std::shared_ptr<const std::vector<Rank>>;

/// A parameter or persistent buffer of one rank.
struct ParameterMetadata {
  std::string name;  ///< in the rank's module.
  Dims shape;
  DType dtype = DType::bf16;
  Index element_size = 2;  ///< bytes.

  bool is_tp = false;  ///< cut along partition_dim over the tensor parallel group.
  int partition_dim = 0;
  Index partition_stride = 1;  ///< 2: gate and up are cut one by one, then stacked.
  /// This rank's rows of each packed part (Mamba's in_proj: z, x, B, C, dt); each part is cut
  /// separately. Replaces partition_stride.
  std::optional<std::vector<Index>> partition_sizes = std::nullopt;

  bool is_ep = false;  ///< of an expert; expert_parallel_group_ranks gives the rank's experts.
  std::optional<Index> num_experts = std::nullopt;  ///< of the whole model.

  Rank owner_rank;
  GroupRanks tensor_parallel_group_ranks = nullptr;  ///< of an expert: the expert tensor group.
  GroupRanks expert_parallel_group_ranks = nullptr;
  GroupRanks data_parallel_group_ranks = nullptr;
  GroupRanks pipeline_parallel_group_ranks = nullptr;

  /// The name that all ranks of both models use; empty until assigned.
  std::string resolved_name = {};
  std::optional<Index> global_expert_index = std::nullopt;
};

/// Local module prefix -> global module prefix: "decoder.layers.0" -> "decoder.layers.16".
using LayerPrefixMap = std::map<std::string, std::string, std::less<>>;

/// The report of one rank about one model.
struct RankMetadata {
  Rank rank;
  std::vector<ParameterMetadata> parameters;  ///< and persistent buffers; distinct names.
  LayerPrefixMap layer_module_prefix_map;
};

/// Records that the layer module `module_name` ("decoder.layers.0") has this 1-based layer_number.
/// Skips modules whose last component is no number, as Megatron does.
void add_layer_module(LayerPrefixMap& map, std::string_view module_name, Index layer_number);

/// Replaces the longest prefix of the name (in whole dotted components) that the map knows.
std::string resolve_global_layer_number_in_name(std::string_view name, const LayerPrefixMap& map);

/// The expert number in a parameter's name: K of a component `weightK` or `biasK` (grouped experts)
/// or of `local_experts.K` (sequential experts); none for other names.
std::optional<Index> detect_expert_index_from_param_name(std::string_view name);

/// Sets resolved_name to `base_name` (by default to name), with a local expert number replaced by
/// the global one, and global_expert_index = position in the expert group * (num_experts / group
/// size) + local number. Expert tensors without a number keep their name. Errors: an expert
/// parameter without group or num_experts; an owner outside its group; a group size that does not
/// divide num_experts; a number beyond the rank's experts.
Result<> assign_ep_resolved_name_inplace(ParameterMetadata& meta, std::string_view base_name = {});

/// The same after replacing the local layer number by the global one.
Result<> assign_resolved_name_inplace(ParameterMetadata& meta, const LayerPrefixMap& map = {},
                                      std::string_view base_name = {});

/// A sharded dimension of a parameter, on both sides.
struct ShardingDescriptor {
  std::string name;  ///< "tp"
  int dim = 0;
  Index src_stride = 1, dst_stride = 1;
  std::vector<Rank> src_dim_ranks, dst_dim_ranks;
};

/// The descriptor of a parameter that is cut on either side; none if it is cut on neither, or if a
/// side has no group. Errors: group size times local size differs between both sides (parameter
/// named). For reports only: planning uses fragments.
Result<std::optional<ShardingDescriptor>> sharding_descriptor(const ParameterMetadata& src,
                                                              const ParameterMetadata& dst);

namespace reported {
/// Replaces the expert number in `name`. @pre detect_expert_index_from_param_name finds one
std::string with_expert_index(std::string_view name, Index expert);
/// The global number of local expert `local`. Errors: those of assign_ep_resolved_name_inplace.
Result<Index> global_expert(std::string_view name, std::optional<Index> num_experts,
                            Index group_size, Index position, Index local);
}  // namespace reported

}  // namespace reshard
