// SPDX-License-Identifier: Apache-2.0
// The layouts that Megatron-Core's own tests refit between, and one rank of a job between them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "reshard/megatron/module_testutil.h"
#include "reshard/megatron/refit.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::megatron {

/// A trainer and an engine of one model.
struct SwapLayouts {
  std::string name;
  ModelConfig config;
  std::string from, to;
  int ranks = 1;
  bool bf16_expert_bias = false;
};
inline std::ostream& operator<<(std::ostream& out, const SwapLayouts& l) { return out << l.name; }

/// `tp=2,...` with the vocabulary padded to 100 rows whatever tp is.
inline std::string sized(int tp, const std::string& rest) {
  return "megatron:tp=" + std::to_string(tp) + ",vocab_multiple=" + std::to_string(4 / tp) +
         (rest.empty() ? "" : ",") + rest;
}

inline std::vector<SwapLayouts> swap_layouts() {
  const ModelConfig dense = tiny_dense(), moe = tiny_glm(), latent = tiny_nemotron(),
                    mla = tiny_deepseek(), delta = tiny_qwen3_next();
  return {
      {"tp1_tp2", dense, sized(1, ""), sized(2, ""), 2},
      {"tp2_tp1", dense, sized(2, ""), sized(1, ""), 2},
      {"tp2_tp4", dense, sized(2, ""), sized(4, ""), 4},
      {"tp4_tp2", dense, sized(4, ""), sized(2, ""), 4},
      {"tp1_tp4", dense, sized(1, ""), sized(4, ""), 4},
      {"tp4_tp1", dense, sized(4, ""), sized(1, ""), 4},
      {"pp1_pp2", dense, sized(1, "pp=1"), sized(1, "pp=2"), 2},
      {"pp2_pp1", dense, sized(1, "pp=2"), sized(1, "pp=1"), 2},
      {"tp2pp1_tp1pp2", dense, sized(2, "pp=1"), sized(1, "pp=2"), 2},
      {"tp1pp2_tp2pp1", dense, sized(1, "pp=2"), sized(2, "pp=1"), 2},
      {"tp2pp2_tp4", dense, sized(2, "pp=2"), sized(4, ""), 4},
      {"dp2_tp2", dense, sized(1, "dp=2"), sized(2, "dp=2"), 4},
      {"ep1_ep2", moe, sized(1, "ep=1,etp=1"), sized(1, "ep=2,etp=1"), 2},
      {"ep2_ep1", moe, sized(1, "ep=2,etp=1"), sized(1, "ep=1,etp=1"), 2},
      {"ep2_ep4", moe, sized(1, "ep=2,etp=1"), sized(1, "ep=4,etp=1"), 4},
      {"ep4_ep2", moe, sized(1, "ep=4,etp=1"), sized(1, "ep=2,etp=1"), 4},
      {"ep2_ep2", moe, sized(1, "ep=2,etp=1"), sized(2, "ep=2,etp=1"), 2},
      {"tp2ep2_tp1ep4", moe, sized(2, "ep=2,etp=1"), sized(1, "ep=4,etp=1"), 4},
      {"tp1ep4_tp2ep2etp2", moe, sized(1, "ep=4,etp=1"), sized(2, "ep=2,etp=2"), 4},
      {"tp2ep2pp2_tp4ep4", moe, sized(2, "ep=2,etp=1,pp=2"), sized(4, "ep=4,etp=1"), 4},
      {"ep8_tp2ep4", moe, sized(1, "ep=8,etp=1"), sized(2, "ep=4,etp=1,dp=4"), 8},
      {"latent_tp2_tp1", latent, sized(2, "ep=2,etp=1"), sized(1, "ep=1,etp=1"), 2},
      {"latent_ep2_tp2", latent, sized(1, "ep=2,etp=1"), sized(2, "ep=1,etp=1,dp=1"), 2},
      {"mtp_pp2_tp2", mla, sized(1, "pp=2,ep=1,etp=1"), sized(2, "ep=2,etp=1"), 2},
      {"chunks_tp2", dense, sized(1, "pp=2,vpp=2"), sized(2, ""), 2},
      {"chunks_chunks", dense, sized(2, "pp=2,vpp=2"), sized(1, "pp=4,layout=Et|t||t|t|||L"), 4},
      {"chunks_mtp_ep2_tp2", mla, sized(1, "pp=2,vpp=2,ep=1,etp=1"), sized(2, "ep=2,etp=1"), 2},
      {"chunks_expert_bias", mla, sized(1, "pp=2,vpp=2,ep=2,etp=1,dp=2"),
       sized(1, "pp=2,vpp=2,ep=1,etp=1"), 4, true},
      {"mamba_tp2_tp1", latent, sized(2, "etp=1"), sized(1, ""), 2},
      {"mamba_tp1_tp2", latent, sized(1, ""), sized(2, "etp=1"), 2},
      {"mamba_tp2_tp4", latent, sized(2, "etp=1"), sized(4, "etp=1"), 4},
      {"mamba_tp1pp1_tp2pp2", latent, sized(1, "pp=1"), sized(2, "pp=2,etp=1"), 4},
      {"mamba_tp2pp1_tp1pp2", latent, sized(2, "pp=1,etp=1"), sized(1, "pp=2"), 2},
      {"delta_net_tp2_tp4", delta, sized(2, "etp=1"), sized(4, "etp=1"), 4},
      {"tied_pp1_pp2", tiny_gemma3(), sized(1, ""), sized(1, "pp=2"), 2},
      {"tied_pp2_tp2", tiny_gemma3(), sized(1, "pp=2"), sized(2, ""), 2},
      {"biases_ep2_tp2", tiny_gpt_oss(), sized(1, "ep=2,etp=1"), sized(2, "ep=1,etp=1"), 2},
      {"expert_bias", moe, sized(2, "ep=2,etp=1"), sized(1, "ep=1,etp=1"), 2, true},
      {"expert_bias_pp2", moe, sized(1, "pp=2"), sized(2, "ep=2,etp=1"), 2, true},
      {"disjoint_tp2_tp4", dense, sized(2, ""), sized(4, "offset=2"), 6},
      {"disjoint_tp4_tp1", dense, sized(4, ""), sized(1, "offset=4"), 5},
      {"disjoint_ep4_ep2", moe, sized(1, "ep=4,etp=1"), sized(1, "ep=2,etp=1,offset=4"), 6, true},
      {"disjoint_tp2ep2pp2_tp2", moe, sized(2, "ep=2,etp=1,pp=2"), sized(2, "etp=1,offset=4"), 6},
      {"disjoint_mamba", latent, sized(2, "pp=2,etp=1"), sized(4, "etp=1,offset=4"), 8, true},
      {"overlapping_and_idle", dense, sized(2, "pp=2"), sized(2, "offset=3"), 7},
  };
}

inline SwapLayouts tp2_to_tp1() { return {"", tiny_dense(), sized(2, ""), sized(1, ""), 2}; }

/// A trainer on ranks 0 and 1, an engine on rank 2, and rank 3 idle; experts.
inline SwapLayouts disjoint() {
  return {"", tiny_glm(), sized(2, "etp=1"), sized(1, "offset=2"), 4, true};
}

/// One rank of a job: its models, and a context of its own.
struct SwapRank {
  std::unique_ptr<ModuleUnderTest> source, target;
  RefitGroup group;
  std::unique_ptr<RefitContext> context;
  RefitArguments arguments;

  SwapRank(const SwapLayouts& layouts, RankEnds& ends, ModuleOptions options = {}) {
    const auto model = model_of(layouts.config);
    const auto from = layout_of(layouts.from, model, layouts.config);
    const auto to = layout_of(layouts.to, model, layouts.config);
    options.own_world = true;
    const Rank me = ends.rank();
    if (from->ranks().contains(me))
      source = std::make_unique<ModuleUnderTest>(from, layouts.config, me, options);
    options.bf16_expert_bias = layouts.bf16_expert_bias;
    if (to->ranks().contains(me))
      target = std::make_unique<ModuleUnderTest>(to, layouts.config, me, options);
    arguments.src_rank_offset = from->mesh(MeshId(0)).first().value();
    arguments.dst_rank_offset = to->mesh(MeshId(0)).first().value();
    group = {ends.control.get(), ends.transport.get()};
    context = std::make_unique<RefitContext>(RefitContext::Defaults{.world = group});
  }

  ModelArgument src() { return argument(source.get()); }
  ModelArgument tgt() { return argument(target.get()); }
  /// As trainers hold it: several chunks of a virtual pipeline are a list.
  static ModelArgument argument(ModuleUnderTest* model) {
    if (model == nullptr) return nullptr;
    const auto chunks = model->chunks();
    return chunks.size() == 1 ? ModelArgument(chunks[0]) : ModelArgument(chunks);
  }

  Result<> swap(const RefitMethod& method) {
    return swap_model_weights(src(), tgt(), method, arguments, *context);
  }
  /// New values in the source, none in the target.
  void begin(std::uint64_t seed) {
    if (source) source->fill({OracleKind::bits, seed});
    if (target) target->clear();
  }
  std::string wrong(std::uint64_t seed, const std::vector<std::string>& except = {}) {
    return target ? target->wrong({OracleKind::bits, seed}, except) : "";
  }
};

/// Refits by name and by service, twice each, from other values each time.
inline Result<> swap_as_rank(RankEnds& ends, const SwapLayouts& layouts) {
  SwapRank me(layouts, ends, {.shared = true});
  const RefitBackendName backend(ends.transport->name());
  for (std::uint64_t seed : {1U, 2U}) {
    me.begin(seed);
    RESHARD_TRY(me.swap(backend));
    EXPECT_EQ(me.wrong(seed), "") << "by name";
  }
  CopyService* service = RESHARD_TRY(get_or_create_service(backend, nullptr, *me.context));
  for (std::uint64_t seed : {3U, 4U}) {
    me.begin(seed);
    RESHARD_TRY(me.swap(service));
    EXPECT_EQ(me.wrong(seed), "") << "by service";
  }
  EXPECT_EQ(me.context->plans_built(), 1U);
  EXPECT_EQ(me.context->sessions_prepared(), 1U);
  RESHARD_TRY(ends.control->quiesce(patient()));
  return {};
}

/// Runs body(rank's models, ends) on the ranks of a job, as threads.
inline void run_job(const SwapLayouts& layouts,
                    const std::function<void(SwapRank&, RankEnds&)>& body) {
  const auto ended = run_group_as_threads<InprocGroup>(layouts.ranks, [&](RankEnds& ends) {
    SwapRank me(layouts, ends);
    body(me, ends);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    clear_all_caches(*me.context);
  });
  EXPECT_EQ(outcome(ended), "");
}

inline void expect_swap(SwapRank& me, std::uint64_t seed, const RefitMethod& method = "inproc") {
  me.begin(seed);
  ASSERT_EQ(outcome(me.swap(method)), "");
  EXPECT_EQ(me.wrong(seed), "");
}

inline PlanCacheKey key_of(SwapRank& me, int pool = 0) {
  const auto cores = unwrap_model_cores(me.src(), me.tgt(), nullptr);
  EXPECT_TRUE(cores.has_value()) << cores.error().message;
  return build_plan_cache_key(*cores, me.group, me.arguments, pool);
}

}  // namespace reshard::megatron
