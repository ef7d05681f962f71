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

#include "reshard/megatron/copy_service.h"
#include "reshard/megatron/module.h"
#include "reshard/megatron/mxfp8_transform.h"
#include "reshard/megatron/reshard_plan.h"
#include "reshard/refit/session.h"

namespace reshard::megatron {

/// "inproc", "shm", "mpi", "gloo", "ucx", "nccl": as `reshard transports` lists them.
using RefitBackendName = std::string;

/// A model as callers have it: null, a module, or a list of one module or of all chunks of a
/// virtual pipeline, in order. Wrappers are removed.
class ModelArgument {
 public:
  ModelArgument(std::nullptr_t) {}  // NOLINT
  ModelArgument(Module* module) {
    if (module) modules_ = {module};
  }  // NOLINT
  ModelArgument(Module& module) : modules_{&module} {}                                     // NOLINT
  ModelArgument(std::vector<Module*> list) : modules_(std::move(list)), is_list_(true) {}  // NOLINT
  /// The modules; empty for null. Errors: the list is empty or contains a null.
  Result<std::vector<Module*>> modules() const;

 private:
  std::vector<Module*> modules_;
  bool is_list_ = false;
};

/// The models of two arguments, without wrappers; null if there is none.
struct ModelCores {
  Module* src = nullptr;
  Module* tgt = nullptr;
  std::optional<Index> num_experts =
      std::nullopt;  ///< of the source; if it has none, of the target.
};

/// Resolves lists, wrappers and missing models; several chunks become a chunk_list(). If the
/// source's pg_collection has no data parallel group, sets it to `data_parallel_group`. Errors: a
/// model has no config or no pg_collection (named); those of ModelArgument::modules() and
/// chunk_list().
Result<ModelCores> unwrap_model_cores(const ModelArgument& src_model,
                                      const ModelArgument& target_model,
                                      const GroupRanks& data_parallel_group);

/// Sizes of the groups TP, PP, EP, DP and expert TP; 1 for a missing group.
using ConfigTuple = std::array<Index, 5>;
/// The sizes in a model's pg_collection; nullopt for null. @pre the model has a pg_collection
std::optional<ConfigTuple> get_config_tuple(const Module* core);

/// Identifies the models and arguments that a cached plan was made for.
struct PlanCacheKey {
  Rank rank;
  std::optional<ConfigTuple> src_config, dst_config;
  std::optional<Index> num_experts;
  Index src_rank_offset = 0, dst_rank_offset = 0;
  int world_size = 1;
  int pool_index = 0;
  std::uint64_t src_module = 0, dst_module = 0;  ///< Module::id(); 0 for none.
  /// Digest of both models' names, shapes, parameter dtypes, attributes and groups: models with
  /// equal group sizes may differ in these.
  std::uint64_t models = 0;
  friend auto operator<=>(const PlanCacheKey&, const PlanCacheKey&) = default;
};

/// The keyword arguments of the functions.
struct RefitArguments {
  const RefitGroup* group = nullptr;  ///< null: Defaults::world.
  Index src_rank_offset = 0, dst_rank_offset = 0;
  /// Null: the one that prepare_swap_model_weights() made, if any. Not every rank needs a
  /// transform; one on any rank makes all ranks use the plan's operations.
  std::shared_ptr<ReshardTransform> transform = nullptr;
  int num_dst_pools = 1, dst_pool_index = 0;  ///< of swap_model_weights().
};

PlanCacheKey build_plan_cache_key(const ModelCores& cores, const RefitGroup& group,
                                  const RefitArguments& arguments, int pool_index = 0);

struct CachedPlan;

/// The state of a process between refits: services, plans, and default arguments. Calls on one
/// context are serialised by a lock. Ranks that are threads need one context each.
class RefitContext {
 public:
  struct Defaults {
    RefitGroup world;  ///< borrowed by services and plans; call clear_all_caches() before it dies.
    GroupRanks data_parallel_group = nullptr;  ///< for sources without pg_collection.dp.
    double seconds = 60;                       ///< deadline of each call.
    RankRefitOptions refit = {};  ///< path, staging and threads of refits by a backend's name.
  };
  RefitContext();
  explicit RefitContext(Defaults defaults);
  ~RefitContext();
  RefitContext(const RefitContext&) = delete;
  RefitContext& operator=(const RefitContext&) = delete;

  void set_defaults(Defaults defaults);
  std::size_t num_services() const;
  std::size_t num_plans() const;
  /// Numbers of plans made and sessions prepared on this rank so far.
  std::size_t plans_built() const;
  std::size_t sessions_prepared() const;
  /// The plan with this key, or null. Valid until the next call that uses this context.
  const ReshardPlan* find_plan(const PlanCacheKey& key) const;

 private:
  friend class RefitCalls;
  mutable std::recursive_mutex mutex_;
  Defaults defaults_;
  /// The services, keyed by backend and the group's control plane.
  std::map<std::pair<std::string, const ControlPlane*>, std::shared_ptr<CopyService>> services_;
  std::map<PlanCacheKey, std::unique_ptr<CachedPlan>> plans_;
  std::size_t plans_built_ = 0, sessions_prepared_ = 0;
};

/// The context of the process.
RefitContext& default_context();

/// The service of this backend and group. If there is none yet, makes it, which is collective.
/// Valid until the cache is cleared. Errors: those of make_copy_service().
Result<CopyService*> get_or_create_service(const RefitBackendName& backend,
                                           const RefitGroup* group = nullptr,
                                           RefitContext& context = default_context());
/// Closes all services and removes them.
void clear_service_cache(RefitContext& context = default_context());
void clear_plan_cache(RefitContext& context = default_context());
void clear_all_caches(RefitContext& context = default_context());

/// Collective. Makes and caches the plan for a pair of models, as swap_model_weights() would, while
/// the target's weights are plain. If needs_mxfp8_conversion(), also quantises the target's decoder
/// weights that have fp8_weight into MXFP8 tensors, whose addresses never change afterwards, and
/// makes the transform that later calls use. Calling it again does nothing.
///
/// Errors of all functions: a model without pg_collection or config, or an argument out of range,
/// on any rank: an error on all ranks that names it and leaves the group usable; those of
/// build_plan(); a weight with fp8_weight that is not a BF16 matrix, or whose columns are not a
/// multiple of 32.
Result<> prepare_swap_model_weights(const ModelArgument& src_model,
                                    const ModelArgument& target_model,
                                    const RefitArguments& arguments = {},
                                    RefitContext& context = default_context());

using RefitMethod = std::variant<RefitBackendName, CopyService*>;

/// Collective. One refit of all target models from the source models. Given a backend's name, a
/// Session runs it and converts dtypes. Given a CopyService, or if any rank has a transform or
/// MXFP8 weights, it executes the plan's operations.
///
/// With num_dst_pools > 1 there is one pass for each pool: this rank receives in pass
/// dst_pool_index and only sends in the others. Errors: those above; `invalid_argument` for an
/// unknown backend; `unsupported`, with the reason, for one that does not work here; those of
/// Session::refit() and execute_reshard_plan().
Result<> swap_model_weights(const ModelArgument& src_model, const ModelArgument& target_model,
                            const RefitMethod& refit_method, const RefitArguments& arguments = {},
                            RefitContext& context = default_context());

/// The same by a service, in one pass, with only the transform in `arguments`.
Result<> reshard_model_weights(const ModelArgument& src_model, const ModelArgument& target_model,
                               CopyService& service, const RefitArguments& arguments = {},
                               RefitContext& context = default_context());

}  // namespace reshard::megatron
