// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "reshard/refit/megatron/copy_service.h"
#include "reshard/refit/megatron/module.h"
#include "reshard/refit/megatron/mxfp8_transform.h"
#include "reshard/refit/megatron/reshard_plan.h"
#include "reshard/refit/session.h"

namespace reshard::megatron {

/// "inproc", "shm", "mpi", "gloo", "ucx", "nccl": as `reshard transports` lists them.
using RefitBackendName = std::string;

/// A model as callers hold it: none, one, or a list, of one or of the chunks of a virtual pipeline
/// in their order. Wrappers are taken off.
class ModelArgument {
 public:
  ModelArgument(std::nullptr_t) {}  // NOLINT
  ModelArgument(Module* module) {
    if (module) modules_ = {module};
  }  // NOLINT
  ModelArgument(Module& module) : modules_{&module} {}                                     // NOLINT
  ModelArgument(std::vector<Module*> list) : modules_(std::move(list)), is_list_(true) {}  // NOLINT
  /// The modules; empty for none. Errors: a list of none, or with a null.
  Result<std::vector<Module*>> modules() const;

 private:
  std::vector<Module*> modules_;
  bool is_list_ = false;
};

/// The models behind the arguments, without wrappers; null where there is none.
struct ModelCores {
  Module* src = nullptr;
  Module* tgt = nullptr;
  std::optional<Index> num_experts = std::nullopt;  ///< the source's, else the target's.
};

/// Handles lists, wrappers and missing models: several chunks become a chunk_list(). A source whose
/// pg_collection has no data parallel group gets `data_parallel_group`. Errors: a model without
/// config or pg_collection (which is named), ModelArgument::modules()'s, chunk_list()'s.
Result<ModelCores> unwrap_model_cores(const ModelArgument& src_model,
                                      const ModelArgument& target_model,
                                      const GroupRanks& data_parallel_group);

/// Sizes of the groups TP, PP, EP, DP, expert TP; 1 where there is none.
using ConfigTuple = std::array<Index, 5>;
/// Of a model's pg_collection; none of null. @pre a pg_collection
std::optional<ConfigTuple> get_config_tuple(const Module* core);

/// What a cached plan is of.
struct PlanCacheKey {
  Rank rank;
  std::optional<ConfigTuple> src_config, dst_config;
  std::optional<Index> num_experts;
  Index src_rank_offset = 0, dst_rank_offset = 0;
  int world_size = 1;
  int pool_index = 0;
  std::uint64_t src_module = 0, dst_module = 0;  ///< Module::id(); 0 for none.
  /// Names, shapes, dtypes of parameters, attributes and groups of both: models of equal sizes are
  /// not one.
  std::uint64_t models = 0;
  friend auto operator<=>(const PlanCacheKey&, const PlanCacheKey&) = default;
};

/// The keyword arguments of the calls.
struct RefitArguments {
  const RefitGroup* group = nullptr;  ///< null: the context's world.
  Index src_rank_offset = 0, dst_rank_offset = 0;
  /// Given, it is used; else the one that prepare_swap_model_weights() made. Not every rank needs
  /// one: a transform on one rank makes all ranks go by operations.
  std::shared_ptr<ReshardTransform> transform = nullptr;
  int num_dst_pools = 1, dst_pool_index = 0;  ///< of swap_model_weights().
};

PlanCacheKey build_plan_cache_key(const ModelCores& cores, const RefitGroup& group,
                                  const RefitArguments& arguments, int pool_index = 0);

struct CachedPlan;

/// What a process keeps between refits: services, plans, and what the calls take where they are
/// told nothing. One call at a time, others wait. Ranks that are threads have one each.
class RefitContext {
 public:
  struct Defaults {
    RefitGroup world;  ///< borrowed by every service and plan: clear_all_caches() before it goes.
    GroupRanks data_parallel_group = nullptr;  ///< for sources whose pg_collection has no dp.
    double seconds = 60;                       ///< deadline of each call.
    RankRefitOptions refit = {};               ///< path, staging and threads of refits by name.
  };
  RefitContext();
  explicit RefitContext(Defaults defaults);
  ~RefitContext();
  RefitContext(const RefitContext&) = delete;
  RefitContext& operator=(const RefitContext&) = delete;

  void set_defaults(Defaults defaults);
  std::size_t num_services() const;
  std::size_t num_plans() const;
  /// Of the calls so far on this rank: plans made, sessions prepared.
  std::size_t plans_built() const;
  std::size_t sessions_prepared() const;
  /// The plan of this key, borrowed until a call or a clear; null where there is none.
  const ReshardPlan* find_plan(const PlanCacheKey& key) const;

 private:
  friend class RefitCalls;
  mutable std::recursive_mutex mutex_;
  Defaults defaults_;
  /// By backend and the group's control plane.
  std::map<std::pair<std::string, const ControlPlane*>, std::shared_ptr<CopyService>> services_;
  std::map<PlanCacheKey, std::unique_ptr<CachedPlan>> plans_;
  std::size_t plans_built_ = 0, sessions_prepared_ = 0;
};

/// The process's own.
RefitContext& default_context();

/// The service of this backend and group; made, collectively, when there is none yet. Borrowed
/// until the cache is cleared. Errors: make_copy_service()'s.
Result<CopyService*> get_or_create_service(const RefitBackendName& backend,
                                           const RefitGroup* group = nullptr,
                                           RefitContext& context = default_context());
/// Closes all services, and then forgets them.
void clear_service_cache(RefitContext& context = default_context());
void clear_plan_cache(RefitContext& context = default_context());
void clear_all_caches(RefitContext& context = default_context());

/// Collective. Makes and keeps the plan of a pair of models, as swap_model_weights() would, while
/// the target's weights are plain; and where the target's config says inference_optimized and
/// mxfp8, quantises the target's decoder weights (those with fp8_weight) into MXFP8 tensors whose
/// addresses stay, and makes the transform that later calls use. Calling it again does nothing.
///
/// Errors, of all calls: a model without pg_collection or config, an argument out of range, on one
/// rank is an error on all that names it and leaves the group usable; those of build_plan(); a
/// weight with fp8_weight that is no matrix of BF16 or whose columns are no multiple of 32.
Result<> prepare_swap_model_weights(const ModelArgument& src_model,
                                    const ModelArgument& target_model,
                                    const RefitArguments& arguments = {},
                                    RefitContext& context = default_context());

using RefitMethod = std::variant<RefitBackendName, CopyService*>;

/// Collective. One refit of all target models from the source models. By a backend's name it goes
/// by the session, over the planner, which converts dtypes; with a service of the caller's, or a
/// transform on any rank, by the operations of the plan.
///
/// With num_dst_pools > 1, one pass for each pool: this rank receives in that of dst_pool_index and
/// only sends in the others. Errors: those above; an unknown backend (invalid_argument) or one that
/// does not work here (unsupported, with the reason); Session::refit()'s and
/// execute_reshard_plan()'s.
Result<> swap_model_weights(const ModelArgument& src_model, const ModelArgument& target_model,
                            const RefitMethod& refit_method, const RefitArguments& arguments = {},
                            RefitContext& context = default_context());

/// The same by a service, one pass, with the transform that is given and no other.
Result<> reshard_model_weights(const ModelArgument& src_model, const ModelArgument& target_model,
                               CopyService& service, const RefitArguments& arguments = {},
                               RefitContext& context = default_context());

/// Whether the model keeps its weights as MXFP8: transformer_impl is inference_optimized and
/// fp8_recipe is mxfp8. Null: no.
bool needs_mxfp8_conversion(const Module* model);

/// Nothing, or which weight of the target cannot become MXFP8, where needs_mxfp8_conversion().
Result<> check_mxfp8_weights(const Module* model, Module* core);

/// Quantises the target's decoder weights with fp8_weight and attaches the transform, where
/// needs_mxfp8_conversion() and the plan has none. Weights that are MXFP8 already stay as they are.
/// `model`: with the config; `core`: with the parameters.
Result<> setup_mxfp8_transform_on_plan(ReshardPlan& plan, const Module* model, Module* core);

}  // namespace reshard::megatron
