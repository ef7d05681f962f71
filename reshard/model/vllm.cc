// SPDX-License-Identifier: Apache-2.0
// vLLM's modules as slots, as its weight loaders fill them. Per rank: qkv_proj stacks its q, k and
// v heads (KV heads are repeated when tp exceeds them), gate_up_proj its gate and up pieces;
// experts are stacked, [E, 2I, H] as w13_weight (gate, then up) and [E, H, I] as w2_weight, cut on
// I over tp * dp or on E over the expert ranks.
#include <fmt/format.h>

#include <numeric>

#include "reshard/model/family_builder.h"

namespace reshard {
namespace {

struct Sizes {
  Index tp, dp, ep, replicas, vocab_multiple, offset;
};

Result<Sizes> read_sizes(const LayoutSpec& spec) {
  RESHARD_TRY(spec.only({"tp", "dp", "ep", "replicas", "vocab_multiple", "dtype", "offset"}));
  Sizes s{};
  s.tp = RESHARD_TRY(spec.integer("tp", 1));
  s.dp = RESHARD_TRY(spec.integer("dp", 1));
  s.ep = RESHARD_TRY(spec.integer("ep", 1));
  s.replicas = RESHARD_TRY(spec.integer("replicas", 1));
  s.vocab_multiple = RESHARD_TRY(spec.integer("vocab_multiple", 64));
  s.offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  if (s.ep != 1 && s.ep != s.tp && s.ep != s.tp * s.dp)
    return fail(Code::invalid_argument,
                fmt::format("vllm: ep={} must be 1, tp={} or tp*dp={}", s.ep, s.tp, s.tp * s.dp));
  return s;
}

class Vllm : private FamilyBuilder {
 public:
  Vllm(const LayoutSpec& spec, const Sizes& sizes, const FamilyInput& input)
      : FamilyBuilder(spec, input), s_(sizes) {}

  static Result<> check(const Sizes& s, const ModelConfig& c) {
    const std::string family = "vllm";
    RESHARD_TRY(check_tp(family, s.tp, c));
    RESHARD_TRY(check_ep(family, s.ep, c));
    if (!has_experts(c) || s.ep > 1) return {};
    return divides(
        family, "tp*dp", s.tp * s.dp, "moe_intermediate_size", c.moe_intermediate_size,
        "; without ep vLLM cuts experts over tp*dp (independent engines are replicas=N)");
  }

  Result<ModelLayout> build(const LayoutSpec& spec) {
    RESHARD_TRY(read_dtype(spec));
    RESHARD_TRY(make_mesh());
    RESHARD_TRY(vocabulary(hf_.embedding(), hf_.embedding(), std::lcm(s_.vocab_multiple, s_.tp)));
    for (Index i = 0; i < c_.num_hidden_layers; ++i) RESHARD_TRY(decoder_layer(i));
    RESHARD_TRY(same(hf_.final_norm()));
    if (!c_.tie_word_embeddings)
      RESHARD_TRY(vocabulary(hf_.lm_head(), hf_.lm_head(), std::lcm(s_.vocab_multiple, s_.tp)));
    return std::move(b_).finish();
  }

 private:
  Result<> make_mesh() {
    const Rank first(static_cast<Rank::rep>(s_.offset));
    mesh_ = b_.add_mesh(
        RESHARD_TRY(Mesh::make({{"tp", s_.tp}, {"dp", s_.dp}, {"replica", s_.replicas}}, first)));
    ranks_ = b_.ranks_where(mesh_, {});
    tp_ = b_.add_cut(cut_over(0));
    kv_ = b_.add_cut(cut_over(0, CutRule::spread, c_.head_dim));
    DimCut both = cut_over(1);
    both.axes[1] = 0;
    both.num_axes = 2;
    both.combine = DimCut::Combine::flattened;
    if (s_.ep == 1) {
      expert_inner_ = b_.add_cut(both);
    } else {
      expert_outer_ = s_.ep == s_.tp * s_.dp ? b_.add_cut(both) : tp_;
    }
    return {};
  }

  /// Whole on every rank under its Hugging Face name.
  Result<> same(const std::string& name) { return replicated(name, name); }

  Result<> row_parallel(Index layer, const std::string& name, bool bias) {
    const std::string weight = hf_.layer(layer, name + ".weight");
    add(weight, 0, sections(whole_tensor(m_, RESHARD_TRY(find(weight)), {CutId(0), tp_})));
    return bias ? same(hf_.layer(layer, name + ".bias")) : Result<>{};
  }

  /// Each rank's pieces of several column-parallel projections, stacked under one name.
  Result<> merged(Index layer, const std::string& name,
                  std::initializer_list<std::pair<const char*, CutId>> parts, bool bias) {
    for (const char* kind : {".weight", ".bias"}) {
      if (kind[1] == 'b' && !bias) continue;
      std::vector<Section> stacked;
      for (const auto& [part, how] : parts)
        stacked.push_back(
            whole_tensor(m_, RESHARD_TRY(find(hf_.layer(layer, std::string(part) + kind))), {how}));
      add(hf_.layer(layer, name + kind), 0, std::move(stacked));
    }
    return {};
  }

  Result<> decoder_layer(Index i) {
    RESHARD_TRY(
        merged(i, "self_attn.qkv_proj",
               {{"self_attn.q_proj", tp_}, {"self_attn.k_proj", kv_}, {"self_attn.v_proj", kv_}},
               c_.attention_bias));
    RESHARD_TRY(row_parallel(i, "self_attn.o_proj", c_.attention_output_bias));
    if (c_.qk_norm) {
      RESHARD_TRY(same(hf_.layer(i, "self_attn.q_norm.weight")));
      RESHARD_TRY(same(hf_.layer(i, "self_attn.k_norm.weight")));
    }
    if (c_.is_moe_layer(i)) {
      RESHARD_TRY(experts(i));
    } else {
      RESHARD_TRY(merged(i, "mlp.gate_up_proj", {{"mlp.gate_proj", tp_}, {"mlp.up_proj", tp_}},
                         c_.mlp_bias));
      RESHARD_TRY(row_parallel(i, "mlp.down_proj", c_.mlp_bias));
    }
    RESHARD_TRY(same(hf_.layer(i, "input_layernorm.weight")));
    return same(hf_.layer(i, "post_attention_layernorm.weight"));
  }

  Result<> experts(Index i) {
    RESHARD_TRY(same(hf_.router(i)));
    if (c_.router_expert_bias) RESHARD_TRY(same(hf_.router_expert_bias(i)));
    const Index n = c_.num_experts, inner = c_.moe_intermediate_size, h = c_.hidden_size;
    Section gate{{n, inner, h}, {expert_outer_, expert_inner_}, {}};
    Section up = gate;
    Section down{{n, h, inner}, {expert_outer_, CutId(0), expert_inner_}, {}};
    for (Index e = 0; e < n; ++e) {
      place(gate, RESHARD_TRY(find(hf_.expert_gate(i, e))), Box{{0, inner}, {0, h}}, {e, 0, 0}, 1);
      place(up, RESHARD_TRY(find(hf_.expert_up(i, e))), Box{{0, inner}, {0, h}}, {e, 0, 0}, 1);
      place(down, RESHARD_TRY(find(hf_.expert_down(i, e))), Box{{0, h}, {0, inner}}, {e, 0, 0}, 1);
    }
    const std::string at = hf_.layer(i, std::string(hf_.ffn_module()) + ".experts.");
    add(at + "w13_weight", 1, sections(std::move(gate), std::move(up)));
    add(at + "w2_weight", 0, sections(std::move(down)));
    return {};
  }

  const Sizes& s_;
  CutId kv_, expert_inner_, expert_outer_;
};

}  // namespace

Result<ModelLayout> vllm_layout(const LayoutSpec& spec, const FamilyInput& input) {
  if (input.config == nullptr)
    return fail(Code::invalid_argument, "vllm: needs the model's config.json");
  const Sizes sizes = RESHARD_TRY(read_sizes(spec));
  RESHARD_TRY(Vllm::check(sizes, *input.config));
  return Vllm(spec, sizes, input).build(spec);
}

}  // namespace reshard
