// SPDX-License-Identifier: Apache-2.0
// SGLang 0.5.23: its keys, its ranks, and what is special in its models. tp is all ranks of a
// stage; attention divides them into dp groups of tp / dp, experts into ep groups of tp / ep.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "reshard/base/value_map.h"
#include "reshard/model/families/engines/engine_layout_builder.h"

namespace reshard::families::sglang {
namespace {

const std::string kFamily = "sglang";

struct Sizes : EngineSizes {
  bool dp_lm_head = false, whole_dense = false, whole_shared = false, fused_shared = false;
  std::optional<DType> dtype = std::nullopt;
  Index attention_tp() const { return tp / dp; }
  Index expert_tp() const { return tp / ep; }
};

bool flag(const LayoutSpec& spec, const char* key, ErrorList& wrong) {
  return wrong.take(spec.one_of(key, {"0", "1"})) == "1";
}

Sizes read_sizes(const LayoutSpec& spec, ErrorList& wrong) {
  wrong.add(spec.check_keys({"tp", "dp", "ep", "pp", "replicas", "vocab_multiple", "redundant",
                             "expert_map", "w13", "transposed", "dp_lm_head", "dense", "shared",
                             "prefix", "mtp", "dtype", "sinks", "offset"}));
  Sizes s{read_engine_sizes(spec, wrong)};
  s.dp_lm_head = flag(spec, "dp_lm_head", wrong);
  s.whole_dense = wrong.take(spec.one_of("dense", {"tp", "whole"})) == "whole";
  const std::string shared = wrong.take(spec.one_of("shared", {"tp", "whole", "fused"}));
  s.whole_shared = shared == "whole";
  s.fused_shared = shared == "fused";
  s.dtype = wrong.take(spec.dtype());
  return s;
}

void check_model(const LayoutSpec& spec, const Sizes& s, const ModelConfig& c, ErrorList& wrong) {
  const auto refuse = [&](const char* key, Index n, const char* why) {
    wrong.add(fail(Code::unsupported,
                   fmt::format("{}={}: {}'s modules {}", key, n, c.architecture, why)));
  };
  if (c.is_bare)
    wrong.add(fail(Code::unsupported,
                   fmt::format("{} has no head, and the modules that are described here have one",
                               c.architecture)));
  if (s.pp > 1 && has_type(c, {"gemma3_text", "qwen3_next"}))
    refuse("pp", s.pp, "have no pipeline stages, so pp must be 1");
  if (s.dp > 1 && has_type(c, {"llama", "mistral", "qwen2", "mixtral", "gemma3_text"}))
    refuse("dp", s.dp,
           "do not support attention data parallelism, so dp must be 1 (for independent engines "
           "use replicas=N)");
  if (s.dtype && c.has_dtype && *s.dtype != c.dtype && c.model_type == "gpt_oss")
    wrong.add(fail(Code::unsupported,
                   fmt::format("dtype={}: {} creates attention and routers in the config's dtype, "
                               "{}, whatever dtype the engine runs in; omit dtype",
                               spec.keys.at("dtype"), c.architecture, name(c.dtype))));
  if (s.fused_shared && (c.shared_expert_size == 0 ||
                         c.shared_expert_size % c.moe_intermediate_size != 0 || !c.gated_mlp))
    wrong.refuse(
        fmt::format("shared=fused needs shared experts whose width is a multiple of that of routed "
                    "ones; {} has {} and {}",
                    c.architecture, c.shared_expert_size, c.moe_intermediate_size));
}

void check(const LayoutSpec& spec, const Sizes& s, const ModelConfig& c, bool mtp,
           ErrorList& wrong) {
  const std::vector<LayerKind> kinds = c.kinds(mtp);
  check_model(spec, s, c, wrong);
  // Attention and experts are cut over tp / dp and tp / ep ranks.
  const auto dp_fits =
      EngineLayoutBuilder::divides(kFamily, "dp", s.dp, "tp", s.tp, "; dp is part of tp");
  const auto ep_fits =
      EngineLayoutBuilder::divides(kFamily, "ep", s.ep, "tp", s.tp, "; ep is part of tp");
  wrong.add(dp_fits);
  wrong.add(ep_fits);
  if (dp_fits)
    EngineLayoutBuilder::check_heads(kFamily, s.dp > 1 ? "tp/dp" : "tp", s.attention_tp(), c, kinds,
                                     wrong);
  EngineLayoutBuilder::check_widths(kFamily, "tp", s.whole_dense ? 1 : s.tp,
                                    s.whole_shared || s.fused_shared, c, kinds, wrong);
  wrong.add(EngineLayoutBuilder::check_ep(kFamily, s.ep, c));
  if (has_type(c, {"qwen3_moe", "qwen3_next", "deepseek_v3", "kimi_k2", "glm4_moe"}))
    EngineLayoutBuilder::check_tp_of_experts(s.tp, c, kinds, wrong);
  if (s.pp > c.num_hidden_layers)
    wrong.refuse(fmt::format("pp={} exceeds num_hidden_layers={}", s.pp, c.num_hidden_layers));
  if (ep_fits)
    EngineLayoutBuilder::check_experts(kFamily, s.ep > 1 ? "tp/ep" : "tp", s.expert_tp(), c, kinds,
                                       "", wrong);
}

/// The last stages get one more layer each if the layers do not divide (distributed/utils.py,
/// get_pp_indices).
std::vector<Index> stages_of(Index layers, Index pp) {
  std::vector<Index> stages(static_cast<std::size_t>(pp), layers / pp);
  for (Index i = 0; i < layers % pp; ++i) ++stages[static_cast<std::size_t>(pp - 1 - i)];
  return stages;
}

/// Padded to the multiple or, if ranks do not divide the result, to the multiple times the ranks.
Index padded_rows(Index rows, Index multiple, Index ranks) {
  const auto up = [&](Index to) { return (rows + to - 1) / to * to; };
  return up(multiple) % ranks == 0 ? up(multiple) : up(multiple * ranks);
}

Result<> place_ranks(EngineSharding& d, const Sizes& s, const ModelConfig& c) {
  const Rank first(static_cast<Rank::rep>(s.offset));
  d.mesh = RESHARD_TRY(Mesh::make(
      {{"attention_tp", s.attention_tp()}, {"dp", s.dp}, {"pp", s.pp}, {"replica", s.replicas}},
      first));
  d.expert_mesh = RESHARD_TRY(Mesh::make(
      {{"expert_tp", s.expert_tp()}, {"ep", s.ep}, {"pp", s.pp}, {"replica", s.replicas}}, first));
  d.heads = cut_over(d.mesh.axis("attention_tp"));
  DimCut tp = cut_over(d.mesh.axis("dp"));
  tp.axes[1] = static_cast<std::int8_t>(d.mesh.axis("attention_tp"));
  tp.num_axes = 2;
  tp.combine = DimCut::Combine::flattened;
  if (!s.whole_dense) d.dense = tp;
  if (!s.whole_shared) d.shared = tp;
  d.head = s.dp_lm_head ? d.heads : tp;
  d.head_rows = padded_rows(c.vocab_size, s.vocab_multiple, s.dp_lm_head ? s.attention_tp() : s.tp);
  // The embedding of Gemma-3 is not parallel.
  const bool plain = c.model_type == "gemma3_text";
  if (!plain) d.embedding = d.heads;
  d.embedding_rows =
      plain ? c.vocab_size : padded_rows(c.vocab_size, s.vocab_multiple, s.attention_tp());
  d.expert_inner = cut_over(d.expert_mesh.axis("expert_tp"));
  d.expert_outer = cut_over(d.expert_mesh.axis("ep"));
  d.stages = stages_of(c.num_hidden_layers, s.pp);
  return {};
}

void read_names(EngineSharding& d, const LayoutSpec& spec, const Sizes& s, const ModelConfig& c,
                ErrorList& wrong) {
  d.up_first = wrong.take(spec.one_of("w13", {"gate_first", "up_first"})) == "up_first";
  d.transposed = flag(spec, "transposed", wrong);
  d.mtp = flag(spec, "mtp", wrong);
  if (d.mtp && c.num_mtp != 1)
    wrong.refuse(
        fmt::format("mtp=1 needs a model with one module for multi-token prediction; {} has {}",
                    c.architecture, c.num_mtp));
  if (d.up_first && c.stacked_experts)
    wrong.refuse(fmt::format("w13=up_first: {} alternates gate and up rows", c.architecture));
  if (wrong.take(spec.one_of("prefix", {"model", "language_model"})) == "language_model")
    d.prefix = "language_model.";
  d.head_everywhere =
      has_type(c, {"llama", "mistral", "qwen3_moe", "mixtral", "glm4_moe", "gpt_oss"});
  d.tied_head = true;
  d.f32_router = c.model_type == "glm4_moe";
  d.qkv_bias = d.output_bias = c.model_type != "qwen3_next";
  d.f32_expert_bias = true;
  if (c.has_dtype && is_convertible(c.dtype)) d.delta_norm_dtype = c.dtype;
  d.sinks_dtype = wrong.take(spec.one_of("sinks", {"bfloat16", "float32"})) == "float32"
                      ? DType::f32
                      : DType::bf16;
  if (spec.keys.contains("sinks") && !c.attention_sinks)
    wrong.refuse(
        fmt::format("sinks= needs a model with attention sinks; {} has none", c.architecture));
  d.nextn = true;
  if (s.fused_shared && c.moe_intermediate_size > 0)
    d.fused_shared = c.shared_expert_size / c.moe_intermediate_size;
  d.expert_module = "experts.";
  d.fused_qkv_a = "fused_qkv_a_proj_with_mqa";
  if (c.model_type == "qwen3_next") d.attention_module = "";
  d.embedding_module = "embed_tokens";
  d.w13_bias = "w13_weight_bias";
  d.w2_bias = "w2_weight_bias";
}

}  // namespace
}  // namespace reshard::families::sglang

namespace reshard {

Result<ModelLayout> sglang_layout(const LayoutSpec& spec, const FamilyInput& input) {
  using namespace families;
  using namespace families::sglang;
  if (input.config == nullptr)
    return fail(Code::invalid_argument, "sglang: needs the model's config.json");
  const ModelConfig& c = *input.config;
  ErrorList wrong(kFamily);
  const Sizes s = read_sizes(spec, wrong);
  EngineSharding d;
  read_names(d, spec, s, c, wrong);
  check(spec, s, c, d.mtp, wrong);
  RESHARD_TRY(wrong.result());
  RESHARD_TRY(place_ranks(d, s, c));
  d.keep_expert_blocks(input.expert_block);
  if (num_expert_layers(c, d.mtp) > 0) {
    const ExpertPlacement how{.num_experts = c.num_experts,
                              .redundant = s.redundant,
                              .ep = s.ep,
                              .even = true,
                              .fused_shared = d.fused_shared,
                              .num_layers = num_expert_layers(c, d.mtp)};
    d.experts = RESHARD_TRY(expert_orders(kFamily, how, input.expert_map));
  }
  return EngineLayoutBuilder(spec, d, input).build(spec);
}

}  // namespace reshard
