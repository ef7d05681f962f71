// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/refit.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"
#include "reshard/megatron/cached_plan.h"

namespace reshard::megatron {
namespace {

Index size_of(const GroupRanks& group) {
  return group == nullptr ? 1 : static_cast<Index>(group->size());
}

/// Unwraps and checks a model; sets num_experts if it is empty.
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

/// Adds everything that a plan depends on. Not the dtypes of persistent buffers: a refit harmonizes
/// them.
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

/// The state of one call. All ranks first agree on which of them have a plan, a service and a
/// session; then they make what is missing. @pre the context's lock is held
class RefitCalls {
 public:
  RefitCalls(RefitContext& context, const RefitArguments& arguments)
      : context_(context), arguments_(arguments) {}

  static std::unique_lock<std::recursive_mutex> lock(RefitContext& context) {
    return std::unique_lock(context.mutex_);
  }

  /// @param tgt  null: the rank only sends in this pass.
  Result<> prepare(const ModelArgument& src, const ModelArgument& tgt) {
    RESHARD_TRY(find_group());
    CallRecord mine{.call = "prepare_swap_model_weights"};
    look(src, tgt, 0, mine);
    if (mine.trouble.empty())
      if (const auto fits = check_mxfp8_weights(model_, cores_.tgt); !fits)
        mine.fail_with(fits.error());
    const CallRecord all = RESHARD_TRY(agree(mine, control(), seconds()));
    if (all.has == CallRecord::Has::nothing) RESHARD_TRY(build());
    return setup_mxfp8_transform_on_plan(cached_->plan, model_, cores_.tgt);
  }

  Result<> swap_by_name(const ModelArgument& src, const ModelArgument& tgt,
                        const RefitBackendName& backend, int pool) {
    RESHARD_TRY(find_group());
    CallRecord mine{.call = fmt::format("swap_model_weights by '{}'{}", backend, of_pool(pool))};
    look(src, tgt, pool, mine);
    if (const auto checked = check_backend(backend, *group_); !checked)
      mine.fail_with(checked.error());
    service_key_ = {backend, group_->control};
    look_for_session(backend, mine);
    const CallRecord all = RESHARD_TRY(agree(mine, control(), seconds()));
    if (all.has == CallRecord::Has::nothing) RESHARD_TRY(build());
    const auto service = RESHARD_TRY(service_of_all(backend, all));
    if (all.by_operations) return execute(*service, RESHARD_TRY(transform()));
    if (all.has != CallRecord::Has::all) RESHARD_TRY(bind(backend, service));
    return refit(backend);
  }

  Result<> swap_by_service(const ModelArgument& src, const ModelArgument& tgt, CopyService& service,
                           int pool, bool cached_transform) {
    RESHARD_TRY(find_group());
    CallRecord mine{.call = fmt::format("swap_model_weights by a service{}", of_pool(pool))};
    look(src, tgt, pool, mine);
    mine.by_operations = true;
    const CallRecord all = RESHARD_TRY(agree(mine, control(), seconds()));
    if (all.has == CallRecord::Has::nothing) RESHARD_TRY(build());
    if (!cached_transform) return execute(service, arguments_.transform.get());
    return execute(service, RESHARD_TRY(transform()));
  }

  /// The backend's service, or a new one whose staging has at most these bytes; none: those of the
  /// context.
  Result<CopyService*> service(const RefitBackendName& backend,
                               std::optional<Index> staging_bytes = std::nullopt) {
    RESHARD_TRY(find_group());
    RankRefitOptions options = context_.defaults_.refit;
    options.staging_bytes = staging_bytes.value_or(options.staging_bytes);
    auto& known = context_.services_[{backend, group_->control}];
    if (known == nullptr) {
      auto made = make_copy_service(backend, *group_, seconds(), options);
      if (!made) {
        context_.services_.erase({backend, group_->control});
        return tl::unexpected(made.error());
      }
      known = *std::move(made);
    }
    return known.get();
  }

  /// Sessions use services, so they are destroyed first.
  static void clear_services(RefitContext& context) {
    for (auto& [key, cached] : context.plans_) cached->sessions.clear();
    for (auto& [key, service] : context.services_) service->close();
    context.services_.clear();
  }
  static void clear_plans(RefitContext& context) { context.plans_.clear(); }

 private:
  ControlPlane& control() { return *group_->control; }
  double seconds() const { return context_.defaults_.seconds; }
  std::string of_pool(int pool) const {
    return arguments_.num_dst_pools == 1
               ? ""
               : fmt::format(", pool {} of {}", pool, arguments_.num_dst_pools);
  }
  /// The transform that was passed, otherwise the plan's. A plan made anew for weights that are
  /// already MXFP8 gets one here.
  Result<ReshardTransform*> transform() {
    if (arguments_.transform != nullptr) return arguments_.transform.get();
    if (target_is_mxfp8_)
      RESHARD_TRY(setup_mxfp8_transform_on_plan(cached_->plan, model_, cores_.tgt));
    return cached_->plan.transform.get();
  }

  Result<> find_group() {
    group_ = arguments_.group != nullptr ? arguments_.group : &context_.defaults_.world;
    if (group_->control != nullptr) return {};
    return fail(Code::invalid_argument, "no group was given, and the context has none");
  }

  /// Finds what this rank has for the models. An error in them becomes trouble, for all ranks to
  /// see.
  void look(const ModelArgument& src, const ModelArgument& tgt, int pool, CallRecord& mine) {
    pool_ = pool;
    const auto looked = look_at_models(src, tgt, mine);
    if (!looked) mine.fail_with(looked.error());
  }

  Result<> look_at_models(const ModelArgument& src, const ModelArgument& tgt, CallRecord& mine) {
    cores_ = RESHARD_TRY(unwrap_model_cores(src, tgt, context_.defaults_.data_parallel_group));
    for (Module* core : {cores_.src, cores_.tgt})
      if (core != nullptr)
        for (const NamedTensor& t : get_refit_tensor_dict(*core)->items())
          if (t.tensor->mxfp8 != nullptr)
            (core == cores_.tgt ? target_is_mxfp8_ : source_is_mxfp8_) = true;
    const std::vector<Module*> targets = RESHARD_TRY(tgt.modules());
    model_ = targets.empty() ? nullptr : targets.front();
    mine.by_operations = arguments_.transform != nullptr || target_is_mxfp8_ || source_is_mxfp8_;
    key_ = build_plan_cache_key(cores_, *group_, arguments_, pool_);
    const auto it = context_.plans_.find(key_);
    if (it == context_.plans_.end()) return {};
    cached_ = it->second.get();
    mine.by_operations |= cached_->plan.transform != nullptr;
    if (digest_of_buffer_dtypes(cores_.src) != cached_->source_dtypes) return {};
    if (digest_of_buffer_dtypes(cores_.tgt) != cached_->target_dtypes) {
      RESHARD_TRY(
          harmonize_buffer_dtypes(cached_->plan, cores_.src, cores_.tgt, *group_, seconds()));
      cached_->target_dtypes = digest_of_buffer_dtypes(cores_.tgt);
    }
    mine.has = CallRecord::Has::plan;
    mine.planner = cached_->planner->digest();
    return {};
  }

  void look_for_session(const RefitBackendName& backend, CallRecord& mine) {
    mine.staging_bytes =
        static_cast<std::uint64_t>(std::max<Index>(context_.defaults_.refit.staging_bytes, 0));
    const auto service = context_.services_.find(service_key_);
    mine.service = service != context_.services_.end();
    if (mine.has == CallRecord::Has::nothing || !mine.service) return;
    const auto session = cached_->sessions.find(backend);
    if (session != cached_->sessions.end() && session->second->service == service->second &&
        session->second->addresses == digest_of_addresses(cores_))
      mine.has = CallRecord::Has::all;
  }

  /// Plans anew. An attached transform is kept.
  Result<> build() {
    std::shared_ptr<ReshardTransform> kept;
    if (cached_ != nullptr) kept = cached_->plan.transform;
    // Plans for earlier states of these modules will never be used again.
    std::erase_if(context_.plans_, [&](const auto& entry) {
      PlanCacheKey was = entry.first;
      was.models = key_.models;
      return was == key_;
    });
    cached_ = nullptr;
    auto fresh = std::make_unique<CachedPlan>();
    ReshardPlan dtypes;
    RESHARD_TRY(harmonize_buffer_dtypes(dtypes, cores_.src, cores_.tgt, *group_, seconds()));
    PlanArguments how{cores_.num_experts, arguments_.src_rank_offset, arguments_.dst_rank_offset,
                      seconds()};
    BuiltPlan built = RESHARD_TRY(build_plan(*group_, cores_.src, cores_.tgt, how));
    fresh->plan = std::move(built.plan);
    fresh->plan.buffer_dtypes = std::move(dtypes.buffer_dtypes);
    fresh->plan.transform = std::move(kept);
    fresh->planner = std::move(built.planner);
    fresh->ignore = std::move(built.ignore);
    fresh->source_dtypes = digest_of_buffer_dtypes(cores_.src);
    fresh->target_dtypes = digest_of_buffer_dtypes(cores_.tgt);
    cached_ = (context_.plans_[key_] = std::move(fresh)).get();
    ++context_.plans_built_;
    return {};
  }

  /// The backend's service; made anew if any rank lacks one.
  Result<std::shared_ptr<CopyService>> service_of_all(const RefitBackendName& backend,
                                                      const CallRecord& all) {
    if (!all.service) {
      if (const auto old = context_.services_.find(service_key_); old != context_.services_.end()) {
        for (auto& [key, cached] : context_.plans_)
          std::erase_if(cached->sessions,
                        [&](const auto& s) { return s.second->service == old->second; });
        old->second->close();
        context_.services_.erase(old);
      }
      RESHARD_TRY(service(backend, static_cast<Index>(all.staging_bytes)));
    }
    return context_.services_.at(service_key_);
  }

  Result<> bind(const RefitBackendName& backend, std::shared_ptr<CopyService> service) {
    cached_->sessions.erase(backend);
    RankRefitOptions how = context_.defaults_.refit;
    how.seconds = seconds();
    cached_->sessions[backend] =
        RESHARD_TRY(bind_session(*cached_, cores_, std::move(service), *group_, how));
    ++context_.sessions_prepared_;
    return {};
  }

  Result<> refit(const RefitBackendName& backend) {
    SessionBinding& binding = *cached_->sessions.at(backend);
    const auto report = binding.session->refit(++binding.version);
    if (report) return {};
    cached_->sessions.erase(backend);
    return tl::unexpected(report.error());
  }

  Result<> execute(CopyService& service, ReshardTransform* transform) {
    return execute_reshard_plan(cached_->plan, cores_.src, cores_.tgt, service, *group_, transform,
                                seconds());
  }

  RefitContext& context_;
  const RefitArguments& arguments_;
  const RefitGroup* group_ = nullptr;
  ModelCores cores_;
  const Module* model_ = nullptr;  ///< the target, wrappers included.
  bool source_is_mxfp8_ = false, target_is_mxfp8_ = false;
  PlanCacheKey key_;
  int pool_ = 0;
  CachedPlan* cached_ = nullptr;
  std::pair<std::string, const ControlPlane*> service_key_;
};

Result<CopyService*> get_or_create_service(const RefitBackendName& backend, const RefitGroup* group,
                                           RefitContext& context) {
  const auto lock = RefitCalls::lock(context);
  RefitArguments arguments;
  arguments.group = group;
  return RefitCalls(context, arguments).service(backend);
}

void clear_service_cache(RefitContext& context) {
  const auto lock = RefitCalls::lock(context);
  RefitCalls::clear_services(context);
}

void clear_plan_cache(RefitContext& context) {
  const auto lock = RefitCalls::lock(context);
  RefitCalls::clear_plans(context);
}

void clear_all_caches(RefitContext& context) {
  clear_service_cache(context);
  clear_plan_cache(context);
}

Result<> prepare_swap_model_weights(const ModelArgument& src_model,
                                    const ModelArgument& target_model,
                                    const RefitArguments& arguments, RefitContext& context) {
  const auto lock = RefitCalls::lock(context);
  return RefitCalls(context, arguments).prepare(src_model, target_model);
}

Result<> swap_model_weights(const ModelArgument& src_model, const ModelArgument& target_model,
                            const RefitMethod& refit_method, const RefitArguments& arguments,
                            RefitContext& context) {
  const auto lock = RefitCalls::lock(context);
  if (arguments.num_dst_pools < 1 || arguments.dst_pool_index < 0 ||
      arguments.dst_pool_index >= arguments.num_dst_pools)
    return fail(Code::invalid_argument,
                fmt::format("dst_pool_index {} is not below num_dst_pools {}",
                            arguments.dst_pool_index, arguments.num_dst_pools));
  for (int pool = 0; pool < arguments.num_dst_pools; ++pool) {
    const ModelArgument target =
        pool == arguments.dst_pool_index ? target_model : ModelArgument(nullptr);
    RefitCalls call(context, arguments);
    if (const auto* backend = std::get_if<RefitBackendName>(&refit_method)) {
      RESHARD_TRY(call.swap_by_name(src_model, target, *backend, pool));
      continue;
    }
    CopyService* service = std::get<CopyService*>(refit_method);
    if (service == nullptr)
      return fail(Code::invalid_argument,
                  "refit_method is null; pass a backend's name or a service");
    RESHARD_TRY(call.swap_by_service(src_model, target, *service, pool, true));
  }
  return {};
}

Result<> reshard_model_weights(const ModelArgument& src_model, const ModelArgument& target_model,
                               CopyService& service, const RefitArguments& arguments,
                               RefitContext& context) {
  const auto lock = RefitCalls::lock(context);
  return RefitCalls(context, arguments)
      .swap_by_service(src_model, target_model, service, arguments.dst_pool_index, false);
}

}  // namespace reshard::megatron
