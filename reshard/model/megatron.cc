// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's GPTModel as slots. Per layer: column-parallel projections are cut on dimension 0,
// row-parallel on 1, over tp (experts: etp); linear_qkv interleaves [q.. k v] per query group and
// is cut into equal runs of rows; linear_fc1 stacks each rank's gate and up pieces. Names: those of
// the Transformer Engine spec, or with norms=separate those of the local spec. Layer numbers in
// names are local to the pipeline stage.
#include <fmt/format.h>

#include <numeric>

#include "reshard/model/family_builder.h"

namespace reshard {
namespace {

struct Sizes {
  Index tp, cp, ep, etp, dp, pp, first, last, vocab_multiple, offset;
  bool fused_norms;
  std::string order;
};

Result<Sizes> read_sizes(const LayoutSpec& spec) {
  RESHARD_TRY(spec.only({"tp", "cp", "ep", "etp", "dp", "pp", "first", "last", "vocab_multiple",
                         "norms", "order", "dtype", "offset"}));
  Sizes s{};
  s.tp = RESHARD_TRY(spec.integer("tp", 1));
  s.cp = RESHARD_TRY(spec.integer("cp", 1));
  s.ep = RESHARD_TRY(spec.integer("ep", 1));
  s.etp = RESHARD_TRY(spec.integer("etp", s.tp));
  s.pp = RESHARD_TRY(spec.integer("pp", 1));
  const Index grid = s.etp * s.ep;
  s.dp = RESHARD_TRY(spec.integer("dp", grid / std::gcd(s.tp * s.cp, grid)));
  s.first = RESHARD_TRY(spec.integer("first", 0));
  s.last = RESHARD_TRY(spec.integer("last", 0));
  s.vocab_multiple = RESHARD_TRY(spec.integer("vocab_multiple", 128));
  s.offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  s.fused_norms = RESHARD_TRY(spec.word("norms", {"fused", "separate"})) == "fused";
  s.order = RESHARD_TRY(spec.word("order", {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"}));
  if (s.tp * s.cp * s.dp % grid != 0)
    return fail(
        Code::invalid_argument,
        fmt::format(
            "megatron: etp*ep={} does not divide tp*cp*dp={}, the ranks of one pipeline stage",
            grid, s.tp * s.cp * s.dp));
  return s;
}

/// Layers of each stage: first and last as given, the rest in equal parts. Where nothing is given
/// and the layers do not divide, the embedding and the loss count as one layer each (Megatron's
/// account_for_*_in_pipeline_split).
Result<std::vector<Index>> stage_sizes(const Sizes& s, Index layers) {
  const bool given = s.first > 0 || s.last > 0;
  Index first = s.first, last = s.pp > 1 ? s.last : 0;
  if (!given && s.pp > 1 && layers % s.pp != 0 && (layers + 2) % s.pp == 0) {
    first = last = (layers + 2) / s.pp - 1;
  }
  const Index rest = layers - first - last, free = s.pp - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  const bool fits = free == 0 ? rest == 0 : rest >= free && rest % free == 0;
  if (!fits || (s.pp == 1 && s.last > 0 && s.last != layers))
    return fail(Code::invalid_argument,
                fmt::format("megatron: pp={} does not divide num_hidden_layers={} with first={} "
                            "last={}; give first= and last= "
                            "so that the {} other stages share {} layers equally",
                            s.pp, layers, s.first, s.last, free, rest));
  std::vector<Index> stages(static_cast<std::size_t>(s.pp), free > 0 ? rest / free : 0);
  if (first > 0) stages.front() = first;
  if (last > 0) stages.back() = last;
  return stages;
}

class Megatron : private FamilyBuilder {
 public:
  Megatron(const LayoutSpec& spec, const Sizes& sizes, const FamilyInput& input)
      : FamilyBuilder(spec, input), s_(sizes) {}

  static Result<> check(const Sizes& s, const ModelConfig& c) {
    const std::string family = "megatron";
    RESHARD_TRY(check_tp(family, s.tp, c));
    RESHARD_TRY(divides(family, "tp", s.tp, "the rows of linear_qkv",
                        (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim));
    RESHARD_TRY(check_ep(family, s.ep, c));
    if (!has_experts(c)) return {};
    RESHARD_TRY(divides(family, "ep", s.ep, "num_experts", c.num_experts));
    return divides(family, "etp", s.etp, "moe_intermediate_size", c.moe_intermediate_size);
  }

  Result<ModelLayout> build(const LayoutSpec& spec) {
    RESHARD_TRY(read_dtype(spec));
    RESHARD_TRY(make_meshes());
    const auto stages = RESHARD_TRY(stage_sizes(s_, c_.num_hidden_layers));
    Index layer = 0;
    for (Index stage = 0; stage < s_.pp; ++stage) {
      stage_ = stage;
      ranks_ = b_.ranks_where(mesh_, {{dense_pp_, stage}});
      if (stage == 0)
        RESHARD_TRY(vocabulary("embedding.word_embeddings.weight", hf_.embedding(),
                               s_.vocab_multiple * s_.tp));
      for (Index i = 0; i < stages[static_cast<std::size_t>(stage)]; ++i, ++layer)
        RESHARD_TRY(decoder_layer(layer, i));
      if (stage == s_.pp - 1) RESHARD_TRY(output());
    }
    return std::move(b_).finish();
  }

 private:
  Result<> make_meshes() {
    const Rank first(static_cast<Rank::rep>(s_.offset));
    const Index edp = s_.tp * s_.cp * s_.dp / (s_.etp * s_.ep);
    mesh_ = b_.add_mesh(RESHARD_TRY(Mesh::from_order(
        s_.order, {{"tp", s_.tp}, {"cp", s_.cp}, {"ep", 1}, {"dp", s_.dp}, {"pp", s_.pp}}, first)));
    expert_ = b_.add_mesh(RESHARD_TRY(Mesh::from_order(
        s_.order, {{"tp", s_.etp}, {"cp", 1}, {"ep", s_.ep}, {"dp", edp}, {"pp", s_.pp}}, first)));
    dense_pp_ = b_.mesh(mesh_).axis("pp");
    expert_pp_ = b_.mesh(expert_).axis("pp");
    expert_ep_ = b_.mesh(expert_).axis("ep");
    tp_ = b_.add_cut(cut_over(b_.mesh(mesh_).axis("tp")));
    etp_ = b_.add_cut(cut_over(b_.mesh(expert_).axis("tp")));
    return {};
  }

  /// Weight cut on `dim` over tp; where it exists, its bias cut alike (column) or whole (row).
  Result<> parallel(const std::string& name, const std::string& hf, int dim, bool bias) {
    const TensorId id = RESHARD_TRY(find(hf + ".weight"));
    add(name + ".weight", 0,
        sections(dim == 0 ? whole_tensor(m_, id, {tp_}) : whole_tensor(m_, id, {CutId(0), tp_})));
    if (!bias) return {};
    const TensorId b = RESHARD_TRY(find(hf + ".bias"));
    add(name + ".bias", 0, sections(dim == 0 ? whole_tensor(m_, b, {tp_}) : whole_tensor(m_, b)));
    return {};
  }

  /// [q of group 0.. | k 0 | v 0 | q of group 1.. | ...]: full row order of linear_qkv.
  Result<Section> interleaved_qkv(Index layer, const std::string& kind) {
    const auto part = [&](const char* p) {
      return find(hf_.layer(layer, fmt::format("self_attn.{}_proj.{}", p, kind)));
    };
    const TensorId q = RESHARD_TRY(part("q")), k = RESHARD_TRY(part("k")),
                   v = RESHARD_TRY(part("v"));
    const Index groups = c_.num_key_value_heads, kv = c_.head_dim,
                run = c_.num_attention_heads / groups * c_.head_dim;
    const bool matrix = m_[q].shape.size() == 2;
    Section section{
        matrix ? Dims{groups * (run + 2 * kv), c_.hidden_size} : Dims{groups * (run + 2 * kv)},
        {tp_},
        {}};
    const auto rows = [&](TensorId id, Index begin, Index n, Index at) {
      const Interval held{begin, begin + n};
      matrix ? place(section, id, Box{held, {0, c_.hidden_size}}, {at, 0})
             : place(section, id, Box{held}, {at});
    };
    for (Index g = 0; g < groups; ++g) {
      const Index at = g * (run + 2 * kv);
      rows(q, g * run, run, at);
      rows(k, g * kv, kv, at + run);
      rows(v, g * kv, kv, at + run + kv);
    }
    return section;
  }

  Result<> decoder_layer(Index layer, Index local) {
    const std::string at = fmt::format("decoder.layers.{}.", local),
                      attention = at + "self_attention.";
    const bool moe = c_.is_moe_layer(layer);
    RESHARD_TRY(replicated(
        s_.fused_norms ? attention + "linear_qkv.layer_norm_weight" : at + "input_layernorm.weight",
        hf_.layer(layer, "input_layernorm.weight")));
    add(attention + "linear_qkv.weight", 0,
        sections(RESHARD_TRY(interleaved_qkv(layer, "weight"))));
    if (c_.attention_bias)
      add(attention + "linear_qkv.bias", 0, sections(RESHARD_TRY(interleaved_qkv(layer, "bias"))));
    if (c_.qk_norm) {
      RESHARD_TRY(replicated(attention + "q_layernorm.weight",
                             hf_.layer(layer, "self_attn.q_norm.weight")));
      RESHARD_TRY(replicated(attention + "k_layernorm.weight",
                             hf_.layer(layer, "self_attn.k_norm.weight")));
    }
    RESHARD_TRY(parallel(attention + "linear_proj", hf_.layer(layer, "self_attn.o_proj"), 1,
                         c_.attention_output_bias));
    RESHARD_TRY(replicated(s_.fused_norms && !moe ? at + "mlp.linear_fc1.layer_norm_weight"
                                                  : at + "pre_mlp_layernorm.weight",
                           hf_.layer(layer, "post_attention_layernorm.weight")));
    return moe ? experts(layer, at + "mlp.") : mlp(layer, at + "mlp.");
  }

  Result<> mlp(Index layer, const std::string& at) {
    for (const char* kind : {"weight", "bias"}) {
      if (kind[0] == 'b' && !c_.mlp_bias) continue;
      const TensorId gate =
          RESHARD_TRY(find(hf_.layer(layer, fmt::format("mlp.gate_proj.{}", kind))));
      const TensorId up = RESHARD_TRY(find(hf_.layer(layer, fmt::format("mlp.up_proj.{}", kind))));
      add(at + "linear_fc1." + kind, 0,
          sections(whole_tensor(m_, gate, {tp_}), whole_tensor(m_, up, {tp_})));
    }
    return parallel(at + "linear_fc2", hf_.layer(layer, "mlp.down_proj"), 1, c_.mlp_bias);
  }

  Result<> experts(Index layer, const std::string& at) {
    RESHARD_TRY(replicated(at + "router.weight", hf_.router(layer)));
    if (c_.router_expert_bias)
      RESHARD_TRY(replicated(at + "router.expert_bias", hf_.router_expert_bias(layer)));
    const Index each = c_.num_experts / s_.ep;
    const std::string fc1 = at + "experts.linear_fc1.weight",
                      fc2 = at + "experts.linear_fc2.weight";
    for (Index e = 0; e < c_.num_experts; ++e) {
      const RankSetId ranks =
          b_.ranks_where(expert_, {{expert_pp_, stage_}, {expert_ep_, e / each}});
      const TensorId gate = RESHARD_TRY(find(hf_.expert_gate(layer, e)));
      const TensorId up = RESHARD_TRY(find(hf_.expert_up(layer, e)));
      const TensorId down = RESHARD_TRY(find(hf_.expert_down(layer, e)));
      const std::string k = std::to_string(e % each);
      add_on(expert_, ranks, fc1 + k, 0,
             sections(whole_tensor(m_, gate, {etp_}), whole_tensor(m_, up, {etp_})));
      add_on(expert_, ranks, fc2 + k, 0, sections(whole_tensor(m_, down, {CutId(0), etp_})));
    }
    return {};
  }

  Result<> output() {
    RESHARD_TRY(replicated("decoder.final_layernorm.weight", hf_.final_norm()));
    if (!c_.tie_word_embeddings)
      return vocabulary("output_layer.weight", hf_.lm_head(), s_.vocab_multiple * s_.tp);
    // The last stage keeps a copy of its own only where the embedding lives on another stage.
    if (s_.pp > 1)
      return vocabulary("output_layer.weight", hf_.embedding(), s_.vocab_multiple * s_.tp);
    return {};
  }

  const Sizes& s_;
  MeshId expert_;
  int dense_pp_ = 0, expert_pp_ = 0, expert_ep_ = 0;
  CutId etp_;
  Index stage_ = 0;
};

}  // namespace

Result<ModelLayout> megatron_layout(const LayoutSpec& spec, const FamilyInput& input) {
  if (input.config == nullptr)
    return fail(Code::invalid_argument, "megatron: needs the model's config.json");
  const Sizes sizes = RESHARD_TRY(read_sizes(spec));
  RESHARD_TRY(Megatron::check(sizes, *input.config));
  return Megatron(spec, sizes, input).build(spec);
}

}  // namespace reshard
