// SPDX-License-Identifier: Apache-2.0
// vLLM 0.33.0: its keys, its ranks, and what is special in its models.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "reshard/model/families/engines/engine_layout_builder.h"

namespace reshard::families::vllm {
namespace {

const std::string kFamily = "vllm";

struct Sizes : EngineSizes {
  bool round_robin = false, redundancy = false;
};

Sizes read_sizes(const LayoutSpec& spec, ErrorList& wrong) {
  wrong.add(spec.check_keys({"tp", "dp", "ep", "pp", "replicas", "vocab_multiple", "redundant",
                             "placement", "expert_map", "w13", "transposed", "experts", "prefix",
                             "mtp", "dtype", "router", "offset"}));
  Sizes s{read_engine_sizes(spec, wrong)};
  s.round_robin = wrong.take(spec.one_of("placement", {"linear", "round_robin"})) == "round_robin";
  s.redundancy = s.redundant > 0 || spec.keys.contains("expert_map");
  return s;
}

/// Checks the sizes against each other.
void check_sizes(const Sizes& s, ErrorList& wrong) {
  if (s.ep != 1 && s.ep != s.tp && s.ep != s.tp * s.dp)
    wrong.refuse(fmt::format("ep={} must be 1, tp={} or tp*dp={}", s.ep, s.tp, s.tp * s.dp));
  if (s.redundancy && s.ep == 1) wrong.refuse("redundant experts and expert_map need ep above 1");
  if (s.redundancy && s.round_robin)
    wrong.refuse("placement=round_robin excludes redundant experts and expert_map");
}

/// True if experts run sequence parallel: the ranks of tp then have different tokens, and shared
/// experts are whole on each (ParallelConfig.use_sequence_parallel_moe). GLM-4.5 does not.
bool whole_shared(const Sizes& s, const ModelConfig& c) {
  return s.ep > 1 && s.ep == s.tp * s.dp && s.tp > 1 && s.dp > 1 && c.model_type != "glm4_moe";
}

/// Checks the sizes against the model.
void check(const Sizes& s, const ModelConfig& c, bool mtp, ErrorList& wrong) {
  const std::vector<LayerKind> kinds = c.kinds(mtp);
  // Required for all models (config/model.py, verify_with_parallel_config).
  wrong.add(EngineLayoutBuilder::divides(kFamily, "tp", s.tp, "num_attention_heads",
                                         c.num_attention_heads));
  EngineLayoutBuilder::check_heads(kFamily, "tp", s.tp, c, kinds, wrong);
  EngineLayoutBuilder::check_widths(kFamily, "tp", s.tp, whole_shared(s, c), c, kinds, wrong);
  wrong.add(EngineLayoutBuilder::check_ep(kFamily, s.ep, c));
  if (has_type(c, {"qwen3_moe", "qwen3_next"}))
    EngineLayoutBuilder::check_tp_of_experts(s.tp, c, kinds, wrong);
  if (s.pp > c.num_hidden_layers)
    wrong.refuse(fmt::format("pp={} exceeds num_hidden_layers={}", s.pp, c.num_hidden_layers));
  if (s.ep == 1)
    EngineLayoutBuilder::check_experts(
        kFamily, "tp*dp", s.tp * s.dp, c, kinds,
        "; without ep vLLM cuts experts over tp*dp (for independent engines use replicas=N)",
        wrong);
}

/// If the layers do not divide, the stages before the last get one more each, from the end
/// (distributed/utils.py, get_pp_indices).
std::vector<Index> stages_of(Index layers, Index pp) {
  std::vector<Index> stages(static_cast<std::size_t>(pp), layers / pp);
  for (Index i = 0; i < layers % pp; ++i) ++stages[static_cast<std::size_t>(pp - 2 - i)];
  return stages;
}

/// Modules that models create on every stage, used there or not.
void place_ends(EngineSharding& d, const ModelConfig& c) {
  d.embedding_everywhere =
      has_type(c, {"qwen3_moe", "mixtral", "gpt_oss", "nemotron_h", "gemma3_text", "qwen3_next"});
  d.head_everywhere = d.embedding_everywhere;
  d.norm_everywhere = d.embedding_everywhere && c.model_type != "qwen3_next";
}

Result<> place_ranks(EngineSharding& d, const Sizes& s, const ModelConfig& c) {
  const Rank first(static_cast<Rank::rep>(s.offset));
  d.mesh = RESHARD_TRY(
      Mesh::make({{"tp", s.tp}, {"pp", s.pp}, {"dp", s.dp}, {"replica", s.replicas}}, first));
  d.expert_mesh = d.mesh;
  const int tp = d.mesh.axis("tp");
  d.heads = d.dense = d.embedding = d.head = cut_over(tp);
  if (!whole_shared(s, c)) d.shared = d.dense;
  DimCut both = cut_over(d.mesh.axis("dp"));
  both.axes[1] = static_cast<std::int8_t>(tp);
  both.num_axes = 2;
  both.combine = DimCut::Combine::flattened;
  if (s.ep == 1)
    d.expert_inner = both;
  else
    d.expert_outer = s.ep == s.tp * s.dp ? both : cut_over(tp);
  const Index multiple = std::lcm(s.vocab_multiple, s.tp);
  d.embedding_rows = d.head_rows = (c.vocab_size + multiple - 1) / multiple * multiple;
  d.stages = stages_of(c.num_hidden_layers, s.pp);
  return {};
}

/// Whether the router is in float32: always for GLM-4.5; for Nemotron-H on GPUs without kernels
/// that read it in the dtype of the model.
bool router_in_f32(const LayoutSpec& spec, const ModelConfig& c, ErrorList& wrong) {
  const bool said = wrong.take(spec.one_of("router", {"model", "float32"})) == "float32";
  if (said && c.model_type != "nemotron_h")
    wrong.refuse(
        fmt::format("router=float32 is only for Nemotron-H, on GPUs where vLLM keeps its router in "
                    "float32; the router of {} has one dtype on all GPUs",
                    c.architecture));
  return said || c.model_type == "glm4_moe";
}

void read_names(EngineSharding& d, const LayoutSpec& spec, const ModelConfig& c, ErrorList& wrong) {
  d.up_first = wrong.take(spec.one_of("w13", {"gate_first", "up_first"})) == "up_first";
  d.transposed = wrong.take(spec.one_of("transposed", {"0", "1"})) == "1";
  d.mtp = wrong.take(spec.one_of("mtp", {"0", "1"})) == "1";
  if (d.mtp && c.num_mtp == 0)
    wrong.refuse(
        fmt::format("mtp=1 needs a model with modules for multi-token prediction; {} has none",
                    c.architecture));
  const std::string experts = wrong.take(spec.one_of("experts", {"routed_experts", "experts"}));
  d.expert_module = experts == "experts" ? "experts." : "experts.routed_experts.";
  const std::string prefix = wrong.take(spec.one_of("prefix", {"model", "language_model"}));
  if (prefix == "language_model") d.prefix = "language_model.";
  if (d.up_first && c.stacked_experts)
    wrong.refuse(fmt::format("w13=up_first: {} alternates gate and up rows", c.architecture));
  d.f32_router = router_in_f32(spec, c, wrong);
  d.qkv_bias = c.model_type != "qwen3_next";
  d.output_bias = d.qkv_bias && !has_type(c, {"qwen3", "qwen3_moe"});
  d.fused_qkv_a = "fused_qkv_a_proj";
  if (c.attention_sinks) d.attention_module = "attn";
  d.embedding_module = c.model_type == "gpt_oss" ? "embedding" : "embed_tokens";
  d.w13_bias = "w13_bias";
  d.w2_bias = "w2_bias";
}

}  // namespace
}  // namespace reshard::families::vllm

namespace reshard {

Result<ModelLayout> vllm_layout(const LayoutSpec& spec, const FamilyInput& input) {
  using namespace families;
  using namespace families::vllm;
  if (input.config == nullptr)
    return fail(Code::invalid_argument, "vllm: needs the model's config.json");
  const ModelConfig& c = *input.config;
  ErrorList wrong(kFamily);
  const Sizes s = read_sizes(spec, wrong);
  EngineSharding d;
  read_names(d, spec, c, wrong);
  wrong.add(spec.dtype());
  check_sizes(s, wrong);
  check(s, c, d.mtp, wrong);
  RESHARD_TRY(wrong.result());
  RESHARD_TRY(place_ranks(d, s, c));
  d.keep_expert_blocks(input.expert_block);
  place_ends(d, c);
  if (num_expert_layers(c, d.mtp) > 0) {
    const ExpertPlacement how{.num_experts = c.num_experts,
                              .redundant = s.redundant,
                              .ep = s.ep,
                              .round_robin = s.round_robin,
                              .num_layers = num_expert_layers(c, d.mtp)};
    d.experts = RESHARD_TRY(expert_orders(kFamily, how, input.expert_map));
  }
  return EngineLayoutBuilder(spec, d, input).build(spec);
}

}  // namespace reshard
