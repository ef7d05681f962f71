// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/metadata.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace reshard::megatron {
namespace {

constexpr Index kMaxRank = std::numeric_limits<Rank::rep>::max();

/// True if a part of the name is weightK or biasK: one expert's tensor of grouped experts.
bool is_grouped_expert(std::string_view name) {
  return detect_expert_index_from_param_name(name) &&
         name.find("local_experts.") == std::string_view::npos;
}

/// True for the second projection of an expert, grouped ("linear_fc2.weight3") or by itself
/// ("local_experts.3.linear_fc2.weight").
bool is_second_projection(std::string_view name) {
  constexpr std::string_view kWeight = "linear_fc2.weight";
  const std::size_t at = name.rfind(kWeight);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return false;
  const std::string_view number = name.substr(at + kWeight.size());
  return std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
}

/// Expert tensor parallelism cuts every tensor of an expert, and the second projection by columns.
/// Releases of Megatron-Core differ in the attributes that grouped experts have: none at all, or
/// partition_dim 0 on both projections.
void cut_as_expert(ParameterMetadata& meta) {
  meta.is_tp = true;
  if (meta.shape.size() == 2 && is_second_projection(meta.name))
    meta.partition_dim = 1;
  else
    meta.partition_dim = std::max(meta.partition_dim, 0);
}

/// Makes rank lists with the offset added; equal lists share one object.
class RankLists {
 public:
  RankLists(const ExtractOptions& options, RankListCache& cache)
      : options_(options), cache_(cache) {}

  Result<GroupRanks> of(const GroupRanks& group, std::string_view name) {
    if (group == nullptr) return GroupRanks{};
    std::vector<Rank> ranks;
    for (Rank r : *group) {
      const Index global = r.value() + options_.rank_offset;
      if (global < 0 || global > kMaxRank)
        return invalid_parameter(
            name, fmt::format("rank {} of a process group plus rank_offset {} is out of range",
                              r.value(), options_.rank_offset));
      ranks.emplace_back(static_cast<Rank::rep>(global));
    }
    return unique(std::move(ranks));
  }

  Result<GroupRanks> whole_world(std::string_view name) {
    std::vector<Rank> ranks;
    if (options_.world_size < 1 || options_.rank_offset > kMaxRank - options_.world_size)
      return invalid_parameter(name, "the world size is not positive or too large");
    for (Index r = 0; r < options_.world_size; ++r)
      ranks.emplace_back(static_cast<Rank::rep>(r + options_.rank_offset));
    return unique(std::move(ranks));
  }

 private:
  GroupRanks unique(std::vector<Rank> ranks) {
    GroupRanks& known = cache_[ranks];
    if (known == nullptr) known = std::make_shared<const std::vector<Rank>>(std::move(ranks));
    return known;
  }

  const ExtractOptions& options_;
  RankListCache& cache_;
};

Result<> add_groups(ParameterMetadata& meta, const ProcessGroups& pg, const ExtractOptions& options,
                    RankLists lists) {
  const std::string& name = meta.name;
  const bool of_expert = meta.is_ep || (options.num_experts && is_grouped_expert(name));
  if (meta.is_ep) {
    if (pg.ep == nullptr)
      return invalid_parameter(name, "an expert's parameter needs pg_collection.ep");
    meta.expert_parallel_group_ranks = RESHARD_TRY(lists.of(pg.ep, name));
  }
  const GroupRanks& tensor = of_expert && pg.expt_tp != nullptr ? pg.expt_tp : pg.tp;
  meta.tensor_parallel_group_ranks = RESHARD_TRY(lists.of(tensor, name));
  if (of_expert && tensor != nullptr && tensor->size() > 1) cut_as_expert(meta);
  if (pg.dp == nullptr) return invalid_parameter(name, "pg_collection.dp is missing");
  meta.data_parallel_group_ranks = RESHARD_TRY(lists.of(pg.dp, name));
  meta.pipeline_parallel_group_ranks =
      pg.pp != nullptr ? RESHARD_TRY(lists.of(pg.pp, name)) : RESHARD_TRY(lists.whole_world(name));
  return {};
}

}  // namespace

Result<Index> rank_in_group(Rank rank, const std::vector<Rank>& group) {
  const auto at = std::ranges::find(group, rank);
  if (at != group.end()) return static_cast<Index>(at - group.begin());
  std::vector<Index> ranks;
  for (Rank r : group) ranks.push_back(r.value());
  return fail(Code::invalid_argument, fmt::format("rank {} is not in process group [{}]",
                                                  rank.value(), fmt::join(ranks, ", ")));
}

LayerPrefixMap build_layer_module_prefix_map(Module& module) {
  LayerPrefixMap map;
  if (module.is_chunk_list) {
    for (const Module::Child& chunk : module.children()) {
      const std::string front = chunk.name + ".";
      const auto leave_out = [&](const std::string& member) {
        map.emplace(front + member, member);
      };
      for (const Module::Child& c : chunk.module->children()) leave_out(c.name);
      for (const NamedTensor& p : chunk.module->parameters()) leave_out(p.name);
      for (const Module::Buffer& b : chunk.module->buffers()) leave_out(b.name);
      for (const auto& [local, global] : build_layer_module_prefix_map(*chunk.module))
        map.insert_or_assign(front + local, global);
    }
    return map;
  }
  for (const NamedModule& m : named_modules(module))
    if (!m.name.empty() && m.module->layer_number)
      add_layer_module(map, m.name, *m.module->layer_number);
  return map;
}

Result<ParameterMetadata> extract_param_metadata(const Tensor& param, std::string_view param_name,
                                                 Rank owner_rank,
                                                 const ProcessGroups& pg_collection,
                                                 const ExtractOptions& options) {
  const ParameterAttributes& attributes = param.attributes;
  ParameterMetadata meta;
  meta.name = param_name;
  meta.shape = param.view.shape;
  meta.dtype = param.view.dtype;
  meta.element_size = bits(param.view.dtype) / 8;
  meta.is_tp = attributes.tensor_model_parallel;
  meta.partition_dim = attributes.partition_dim;
  meta.partition_stride = attributes.partition_stride;
  meta.partition_sizes = attributes.partition_sizes;
  meta.is_ep = !attributes.allreduce;
  meta.num_experts = options.num_experts;
  meta.owner_rank = owner_rank;
  RankListCache own;
  RankLists lists(options, options.rank_list_cache != nullptr ? *options.rank_list_cache : own);
  RESHARD_TRY(add_groups(meta, pg_collection, options, lists));
  const LayerPrefixMap none;
  RESHARD_TRY(assign_resolved_name_inplace(
      meta, options.layer_module_prefix_map != nullptr ? *options.layer_module_prefix_map : none));
  return meta;
}

Result<RankMetadata> module_metadata(Module& module, Rank owner_rank,
                                     const ExtractOptions& options) {
  if (!module.pg_collection) return fail(Code::invalid_argument, "the module has no pg_collection");
  RankMetadata out{owner_rank, {}, build_layer_module_prefix_map(module)};
  RankListCache lists;
  ExtractOptions shared = options;
  shared.layer_module_prefix_map = &out.layer_module_prefix_map;
  if (shared.rank_list_cache == nullptr) shared.rank_list_cache = &lists;
  for (const NamedTensor& t : named_refit_tensors(module))
    out.parameters.push_back(RESHARD_TRY(
        extract_param_metadata(*t.tensor, t.name, owner_rank, *module.pg_collection, shared)));
  return out;
}

}  // namespace reshard::megatron
