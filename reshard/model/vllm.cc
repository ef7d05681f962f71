// SPDX-License-Identifier: Apache-2.0
// vLLM's modules as slots, as its weight loaders fill them. Per rank: qkv_proj stacks its q, k and v heads (KV heads
// are repeated when tp exceeds them), gate_up_proj its gate and up pieces; experts are stacked, [E, 2I, H] as
// w13_weight (gate, then up) and [E, H, I] as w2_weight, cut on I over tp * dp or on E over the expert ranks.
#include <fmt/format.h>

#include <numeric>

#include "reshard/model/families.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/names.h"

namespace reshard {
namespace {

struct Sizes {
  Index tp, dp, ep, replicas, vocab_multiple, offset;
};

Result<> divides(const char* part, Index n, const char* whole, Index size, const char* hint = "") {
  if (size % n == 0) return {};
  return fail(Code::invalid_argument, fmt::format("vllm: {}={} does not divide {}={}{}", part, n, whole, size, hint));
}

Result<Sizes> read_sizes(const LayoutSpec& spec, const ModelConfig& c) {
  RESHARD_TRY(spec.only({"tp", "dp", "ep", "replicas", "vocab_multiple", "offset"}));
  Sizes s{};
  s.tp = RESHARD_TRY(spec.integer("tp", 1));
  s.dp = RESHARD_TRY(spec.integer("dp", 1));
  s.ep = RESHARD_TRY(spec.integer("ep", 1));
  s.replicas = RESHARD_TRY(spec.integer("replicas", 1));
  s.vocab_multiple = RESHARD_TRY(spec.integer("vocab_multiple", 64));
  s.offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  if (s.ep != 1 && s.ep != s.tp && s.ep != s.tp * s.dp)
    return fail(Code::invalid_argument, fmt::format("vllm: ep={} must be 1, tp={} or tp*dp={}", s.ep, s.tp, s.tp * s.dp));
  if (s.ep > 1 && !c.is_moe()) return fail(Code::invalid_argument, fmt::format("vllm: ep={} needs a model with experts; this one has none", s.ep));
  RESHARD_TRY(divides("tp", s.tp, "num_attention_heads", c.num_attention_heads));
  if (s.tp > c.num_key_value_heads ? s.tp % c.num_key_value_heads != 0 : c.num_key_value_heads % s.tp != 0)
    return fail(Code::invalid_argument, fmt::format("vllm: tp={} is neither a multiple nor a divisor of num_key_value_heads={}", s.tp, c.num_key_value_heads));
  bool dense = false, sparse = false;
  for (Index i = 0; i < c.num_hidden_layers; ++i) (c.is_moe_layer(i) ? sparse : dense) = true;
  if (dense) RESHARD_TRY(divides("tp", s.tp, "intermediate_size", c.intermediate_size));
  if (sparse && s.ep == 1)
    RESHARD_TRY(divides("tp*dp", s.tp * s.dp, "moe_intermediate_size", c.moe_intermediate_size,
                        "; without ep vLLM cuts experts over tp*dp (independent engines are replicas=N)"));
  return s;
}

class Family {
 public:
  Family(const LayoutSpec& spec, const Sizes& sizes, const FamilyInput& input)
      : s_(sizes), c_(*input.config), hf_(c_), m_(*input.model), b_(to_string(spec), input.model) {}

  Result<ModelLayout> build() {
    RESHARD_TRY(make_mesh());
    RESHARD_TRY(vocabulary(hf_.embedding()));
    for (Index i = 0; i < c_.num_hidden_layers; ++i) RESHARD_TRY(decoder_layer(i));
    RESHARD_TRY(replicated(hf_.final_norm()));
    if (!c_.tie_word_embeddings) RESHARD_TRY(vocabulary(hf_.lm_head()));
    return std::move(b_).finish();
  }

 private:
  Result<> make_mesh() {
    const Rank first(static_cast<Rank::rep>(s_.offset));
    mesh_ = b_.add_mesh(RESHARD_TRY(Mesh::make({{"tp", s_.tp}, {"dp", s_.dp}, {"replica", s_.replicas}}, first)));
    all_ = b_.ranks_where(mesh_, {});
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

  Result<TensorId> find(const std::string& name) const {
    if (const auto id = m_.find(name)) return *id;
    return fail(Code::not_found, fmt::format("vllm: tensor '{}' is missing from the model", name));
  }

  void add(std::string name, int stack_dim, std::vector<Section> sections, bool padded = false) {
    const DType dtype = m_[sections[0].parts[0].tensor].dtype;
    b_.add(Slot{std::move(name), dtype, mesh_, all_, stack_dim, padded, std::move(sections)});
  }

  Result<> replicated(const std::string& name) {
    add(name, 0, {whole_tensor(m_, RESHARD_TRY(find(name)))});
    return {};
  }

  Result<> row_parallel(Index layer, const std::string& name, bool bias) {
    const std::string weight = hf_.layer(layer, name + ".weight");
    add(weight, 0, {whole_tensor(m_, RESHARD_TRY(find(weight)), {CutId(0), tp_})});
    return bias ? replicated(hf_.layer(layer, name + ".bias")) : Result<>{};
  }

  /// Each rank's pieces of several column-parallel projections, stacked under one name.
  Result<> merged(Index layer, const std::string& name, std::initializer_list<std::pair<const char*, CutId>> parts, bool bias) {
    for (const char* kind : {".weight", ".bias"}) {
      if (kind[1] == 'b' && !bias) continue;
      std::vector<Section> sections;
      for (const auto& [part, how] : parts)
        sections.push_back(whole_tensor(m_, RESHARD_TRY(find(hf_.layer(layer, std::string(part) + kind))), {how}));
      add(hf_.layer(layer, name + kind), 0, std::move(sections));
    }
    return {};
  }

  Result<> vocabulary(const std::string& name) {
    const TensorId id = RESHARD_TRY(find(name));
    const Index multiple = std::lcm(s_.vocab_multiple, s_.tp);
    const Index rows = (c_.vocab_size + multiple - 1) / multiple * multiple;
    Section section{{rows, c_.hidden_size}, {tp_}, {}};
    place(section, id, Box::whole(m_[id].shape), {0, 0});
    add(name, 0, {std::move(section)}, rows != c_.vocab_size);
    return {};
  }

  Result<> decoder_layer(Index i) {
    RESHARD_TRY(merged(i, "self_attn.qkv_proj", {{"self_attn.q_proj", tp_}, {"self_attn.k_proj", kv_}, {"self_attn.v_proj", kv_}}, c_.attention_bias));
    RESHARD_TRY(row_parallel(i, "self_attn.o_proj", c_.attention_output_bias));
    if (c_.qk_norm) {
      RESHARD_TRY(replicated(hf_.layer(i, "self_attn.q_norm.weight")));
      RESHARD_TRY(replicated(hf_.layer(i, "self_attn.k_norm.weight")));
    }
    if (c_.is_moe_layer(i)) {
      RESHARD_TRY(experts(i));
    } else {
      RESHARD_TRY(merged(i, "mlp.gate_up_proj", {{"mlp.gate_proj", tp_}, {"mlp.up_proj", tp_}}, c_.mlp_bias));
      RESHARD_TRY(row_parallel(i, "mlp.down_proj", c_.mlp_bias));
    }
    RESHARD_TRY(replicated(hf_.layer(i, "input_layernorm.weight")));
    return replicated(hf_.layer(i, "post_attention_layernorm.weight"));
  }

  Result<> experts(Index i) {
    RESHARD_TRY(replicated(hf_.router(i)));
    if (c_.router_expert_bias) RESHARD_TRY(replicated(hf_.router_bias(i)));
    const Index n = c_.num_experts, inner = c_.moe_intermediate_size, h = c_.hidden_size;
    Section gate{{n, inner, h}, {expert_outer_, expert_inner_}, {}};
    Section up = gate;
    Section down{{n, h, inner}, {expert_outer_, CutId(0), expert_inner_}, {}};
    for (Index e = 0; e < n; ++e) {
      place(gate, RESHARD_TRY(find(hf_.expert_gate(i, e))), Box{{0, inner}, {0, h}}, {e, 0, 0}, 1);
      place(up, RESHARD_TRY(find(hf_.expert_up(i, e))), Box{{0, inner}, {0, h}}, {e, 0, 0}, 1);
      place(down, RESHARD_TRY(find(hf_.expert_down(i, e))), Box{{0, h}, {0, inner}}, {e, 0, 0}, 1);
    }
    const std::string at = hf_.layer(i, hf_.moe() + ".experts.");
    std::vector<Section> w13;
    w13.push_back(std::move(gate));
    w13.push_back(std::move(up));
    add(at + "w13_weight", 1, std::move(w13));
    std::vector<Section> w2;
    w2.push_back(std::move(down));
    add(at + "w2_weight", 0, std::move(w2));
    return {};
  }

  const Sizes& s_;
  const ModelConfig& c_;
  HfNames hf_;
  const ModelSpec& m_;
  LayoutBuilder b_;
  MeshId mesh_;
  RankSetId all_;
  CutId tp_, kv_, expert_inner_, expert_outer_;
};

}  // namespace

Result<ModelLayout> vllm_layout(const LayoutSpec& spec, const FamilyInput& input) {
  if (input.config == nullptr) return fail(Code::invalid_argument, "vllm: needs the model's config.json");
  const Sizes sizes = RESHARD_TRY(read_sizes(spec, *input.config));
  return Family(spec, sizes, input).build();
}

}  // namespace reshard
