// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/megatron/refit.h"

#include <fmt/format.h>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"
#include "reshard/refit/megatron/cached_plan.h"

namespace reshard::megatron {
namespace {

Index size_of(const GroupRanks& group) {
  return group == nullptr ? 1 : static_cast<Index>(group->size());
}

/// The model's core and its experts; checked.
Result<Module*> core_of(const ModelArgument& argument, const char* which,
                        std::optional<Index>& num_experts) {
  const std::vector<Module*> models = RESHARD_TRY(argument.modules());
  if (models.empty()) return nullptr;
  std::vector<Module*> cores;
  for (Module* model : models) {
    Module* core = RESHARD_TRY(unwrap_model(*model));
    const auto& config = model->config ? model->config : core->config;
    const std::string chunk = models.size() == 1 ? "" : fmt::format("'s chunk {}", cores.size());
    if (!config) return invalid(fmt::format("{} model{} has no config", which, chunk));
    if (!core->pg_collection)
      return invalid(
          fmt::format("{} model{} has no pg_collection, which a refit needs", which, chunk));
    if (!num_experts) num_experts = config->num_moe_experts;
    cores.push_back(core);
  }
  return cores.size() == 1 ? cores.front() : chunk_list(cores);
}

void add_groups(Digest& digest, const ProcessGroups& groups) {
  for (const GroupRanks& group : {groups.tp, groups.pp, groups.ep, groups.dp, groups.expt_tp}) {
    digest.add(group == nullptr ? -1 : static_cast<Index>(group->size()));
    if (group != nullptr)
      for (Rank r : *group) digest.add(r.value());
  }
}

/// Of all that a plan depends on; of persistent buffers all but the dtype, which a refit sees to.
void add_module(Digest& digest, Module* module) {
  if (module == nullptr) return;
  add_groups(digest, *module->pg_collection);
  const auto tensors = get_refit_tensor_dict(*module);
  digest.add(tensors->digest());
  for (const NamedTensor& t : tensors->items()) {
    const Tensor& tensor = *t.tensor;
    const ParameterAttributes& a = tensor.attributes;
    digest.add(tensor.view.shape.size());
    for (Index n : tensor.view.shape) digest.add(n);
    digest.add(t.is_buffer ? -1 : static_cast<int>(tensor.view.dtype));
    digest.add(a.tensor_model_parallel).add(a.partition_dim).add(a.partition_stride);
    digest.add(a.allreduce).add(a.partition_sizes ? a.partition_sizes->size() : 0);
    if (a.partition_sizes)
      for (Index n : *a.partition_sizes) digest.add(n);
  }
}

}  // namespace

Result<std::vector<Module*>> ModelArgument::modules() const {
  if (is_list_ && modules_.empty()) return invalid("a list of modules is empty");
  for (std::size_t i = 0; i < modules_.size(); ++i)
    if (modules_[i] == nullptr) return invalid(fmt::format("module {} of a list is null", i));
  return modules_;
}

Result<ModelCores> unwrap_model_cores(const ModelArgument& src_model,
                                      const ModelArgument& target_model,
                                      const GroupRanks& data_parallel_group) {
  ModelCores out;
  out.src = RESHARD_TRY(core_of(src_model, "source", out.num_experts));
  out.tgt = RESHARD_TRY(core_of(target_model, "target", out.num_experts));
  if (out.src != nullptr && out.src->pg_collection->dp == nullptr)
    out.src->pg_collection->dp = data_parallel_group;
  return out;
}

std::optional<ConfigTuple> get_config_tuple(const Module* core) {
  if (core == nullptr) return std::nullopt;
  const ProcessGroups& pg = *core->pg_collection;
  return ConfigTuple{size_of(pg.tp), size_of(pg.pp), size_of(pg.ep), size_of(pg.dp),
                     size_of(pg.expt_tp)};
}

PlanCacheKey build_plan_cache_key(const ModelCores& cores, const RefitGroup& group,
                                  const RefitArguments& arguments, int pool_index) {
  Digest models;
  add_module(models, cores.src);
  models.add("target");
  add_module(models, cores.tgt);
  return {.rank = group.rank(),
          .src_config = get_config_tuple(cores.src),
          .dst_config = get_config_tuple(cores.tgt),
          .num_experts = cores.num_experts,
          .src_rank_offset = arguments.src_rank_offset,
          .dst_rank_offset = arguments.dst_rank_offset,
          .world_size = group.control->size(),
          .pool_index = pool_index,
          .src_module = cores.src == nullptr ? 0 : cores.src->id(),
          .dst_module = cores.tgt == nullptr ? 0 : cores.tgt->id(),
          .models = models.value()};
}

RefitContext::RefitContext() = default;
RefitContext::RefitContext(Defaults defaults) : defaults_(std::move(defaults)) {}
RefitContext::~RefitContext() { clear_all_caches(*this); }

void RefitContext::set_defaults(Defaults defaults) {
  const std::lock_guard lock(mutex_);
  defaults_ = std::move(defaults);
}

std::size_t RefitContext::num_services() const {
  const std::lock_guard lock(mutex_);
  return services_.size();
}

std::size_t RefitContext::num_plans() const {
  const std::lock_guard lock(mutex_);
  return plans_.size();
}

std::size_t RefitContext::plans_built() const {
  const std::lock_guard lock(mutex_);
  return plans_built_;
}

std::size_t RefitContext::sessions_prepared() const {
  const std::lock_guard lock(mutex_);
  return sessions_prepared_;
}

const ReshardPlan* RefitContext::find_plan(const PlanCacheKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto it = plans_.find(key);
  return it == plans_.end() ? nullptr : &it->second->plan;
}

RefitContext& default_context() {
  static RefitContext context;
  return context;
}

}  // namespace reshard::megatron
