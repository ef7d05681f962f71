// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/engines/engine_layout_builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::families {
EngineLayoutBuilder::EngineLayoutBuilder(const LayoutSpec& spec, const EngineSharding& design,
                                         const FamilyInput& input)
    : FamilyBuilder(spec, input), d_(design) {
  mesh_ = b_.add_mesh(d_.mesh);
  expert_mesh_ = d_.expert_mesh == d_.mesh ? mesh_ : b_.add_mesh(d_.expert_mesh);
  heads_ = b_.add_cut(d_.heads);
  dense_ = b_.add_cut(d_.dense);
  shared_ = b_.add_cut(d_.shared);
  embedding_ = b_.add_cut(d_.embedding);
  head_ = b_.add_cut(d_.head);
  outer_ = b_.add_cut(d_.expert_outer);
  inner_ = b_.add_cut(d_.expert_inner);
}

Result<ModelLayout> EngineLayoutBuilder::build(const LayoutSpec& spec) {
  RESHARD_TRY(read_dtype(spec, model_dtype()));
  const Index last = static_cast<Index>(d_.stages.size()) - 1;
  Index next = 0;
  for (Index stage = 0; stage <= last; ++stage) {
    enter_stage(stage);
    RESHARD_TRY(ends(stage == 0, stage == last));
    for (Index i = 0; i < d_.stages[static_cast<std::size_t>(stage)]; ++i)
      RESHARD_TRY(layer(decoder_layer(next++)));
  }
  if (d_.mtp)
    for (Index module = 0; module < c_.num_mtp; ++module) RESHARD_TRY(mtp_module(module));
  else
    omit_mtp();
  omit_input_scales();
  return std::move(b_).finish();
}

void EngineLayoutBuilder::enter_stage(Index stage) {
  ranks_ = b_.ranks_where(mesh_, {{d_.mesh.axis("pp"), stage}});
  expert_ranks_ = b_.ranks_where(expert_mesh_, {{d_.expert_mesh.axis("pp"), stage}});
}

Result<> EngineLayoutBuilder::ends(bool first, bool last) {
  const bool tied = c_.tie_word_embeddings;
  // A draft model on the last stage has its own embedding.
  const bool draft = d_.mtp && c_.num_mtp > 0 && c_.mtp_names == MtpNames::trailing;
  const bool again = last && ((tied && !d_.tied_head) || draft);
  if (first || d_.embedding_everywhere || again)
    RESHARD_TRY(vocabulary(d_.prefix + "model." + d_.embedding_module + ".weight", hf_.embedding(),
                           embedding_, d_.embedding_rows));
  if (last || d_.norm_everywhere)
    RESHARD_TRY(replicated(d_.prefix + "model." + hf_.final_norm().substr(hf_.decoder().size()),
                           hf_.final_norm()));
  if (c_.is_bare) {
    if (const auto head = m_.find(hf_.lm_head())) b_.omit(*head);
    return {};
  }
  const std::string name = d_.prefix + "lm_head.weight";
  if (!tied && (last || d_.head_everywhere))
    return vocabulary(name, hf_.lm_head(), head_, d_.head_rows);
  if (tied && d_.tied_head && last && !first)
    return vocabulary(name, hf_.embedding(), head_, d_.head_rows);
  return {};
}

Result<> EngineLayoutBuilder::vocabulary(const std::string& name, const std::string& hf, CutId how,
                                         Index rows) {
  const TensorId id = RESHARD_TRY(find(hf));
  Section section{{rows, c_.hidden_size}, {how}, {}};
  place(section, id, Box::whole(m_[id].shape), {0, 0});
  add(name, 0, sections(std::move(section)), {.padded = rows != c_.vocab_size});
  return {};
}

EngineLayoutBuilder::Layer EngineLayoutBuilder::decoder_layer(Index i) const {
  return {LayerAt(i), fmt::format("{}model.layers.{}.", d_.prefix, i)};
}

std::string EngineLayoutBuilder::own(const Layer& l, const std::string& hf) const {
  return l.name + hf.substr(hf_.layer(l.at, "").size());
}

std::string EngineLayoutBuilder::mixer(const Layer& l, const std::string& rest) const {
  const bool renamed = d_.attention_module && hf_.kind(l.at).mixer == Mixer::attention;
  const std::string module = renamed ? *d_.attention_module : std::string(hf_.mixer_module(l.at));
  return l.name + (module.empty() ? "" : module + ".") + rest;
}

std::string EngineLayoutBuilder::ffn(const Layer& l, const std::string& rest) const {
  return fmt::format("{}{}.{}", l.name, hf_.ffn_module(), rest);
}

Result<> EngineLayoutBuilder::layer(const Layer& l) {
  const LayerKind kind = hf_.kind(l.at);
  switch (kind.mixer) {
    case Mixer::attention: RESHARD_TRY(attention(l)); break;
    case Mixer::mla: RESHARD_TRY(mla(l)); break;
    case Mixer::mamba2: RESHARD_TRY(mamba2(l)); break;
    case Mixer::gated_delta: RESHARD_TRY(gated_delta(l)); break;
    case Mixer::none: break;
  }
  for (const auto& [hf, scale] : cache_scales(l.at)) {
    const TensorId id = RESHARD_TRY(find(hf));
    add(mixer(l, "attn." + scale), 0, sections(whole_tensor(m_, id)), {.dtype = m_[id].dtype});
  }
  if (kind.ffn == Ffn::experts) RESHARD_TRY(experts(l));
  if (kind.ffn == Ffn::dense)
    RESHARD_TRY(dense(ffn(l, ""), hf_.ffn(l.at, ""), dense_, c_.mlp_bias));
  RESHARD_TRY(same(l, hf_.mixer_norm(l.at)));
  if (kind.mixer != Mixer::none && kind.ffn != Ffn::none) RESHARD_TRY(same(l, hf_.ffn_norm(l.at)));
  if (!c_.sandwich_norms) return {};
  RESHARD_TRY(same(l, hf_.mixer_post_norm(l.at)));
  return same(l, hf_.ffn_post_norm(l.at));
}

Result<> EngineLayoutBuilder::dense(const std::string& name, const std::string& hf, CutId how,
                                    bool bias) {
  if (c_.gated_mlp)
    RESHARD_TRY(
        stacked(name + "gate_up_proj", {{hf + "gate_proj", how}, {hf + "up_proj", how}}, bias));
  else
    RESHARD_TRY(column(name + "up_proj", hf + "up_proj", how, bias));
  return row(name + "down_proj", hf + "down_proj", how, bias);
}

Result<> EngineLayoutBuilder::column(const std::string& name, const std::string& hf, CutId how,
                                     bool bias) {
  return stacked(name, {{hf, how}}, bias);
}

Result<> EngineLayoutBuilder::row(const std::string& name, const std::string& hf, CutId how,
                                  bool bias) {
  const TensorId id = RESHARD_TRY(find(hf + ".weight"));
  add(name + ".weight", 0, sections(whole_tensor(m_, id, {CutId(0), how})));
  return bias ? replicated(name + ".bias", hf + ".bias") : Result<>{};
}

Result<> EngineLayoutBuilder::stacked(const std::string& name, std::initializer_list<Part> parts,
                                      bool bias) {
  for (const char* kind : {".weight", ".bias"}) {
    if (kind[1] == 'b' && !bias) continue;
    std::vector<Section> list;
    for (const auto& [part, how] : parts)
      list.push_back(whole_tensor(m_, RESHARD_TRY(find(part + kind)), {how}));
    add(name + kind, 0, std::move(list));
  }
  return {};
}

Result<> EngineLayoutBuilder::vector(const std::string& name, const std::string& hf, CutId how,
                                     Stored stored) {
  add(name, 0, sections(whole_tensor(m_, RESHARD_TRY(find(hf)), {how})), stored);
  return {};
}

std::optional<DType> EngineLayoutBuilder::config_dtype() const {
  if (!c_.has_dtype || !is_convertible(c_.dtype)) return std::nullopt;
  return c_.dtype;
}

std::optional<DType> EngineLayoutBuilder::model_dtype() const {
  if (const auto said = config_dtype()) return said;
  const auto id = m_.find(hf_.embedding());
  if (!id || !is_convertible(m_[*id].dtype)) return std::nullopt;
  return m_[*id].dtype;
}

CutId EngineLayoutBuilder::in_units(const DimCut& how, Index granule) {
  DimCut cut = how;
  cut.rule = CutRule::spread;
  cut.granule = granule;
  return b_.add_cut(cut);
}

void EngineLayoutBuilder::check_heads(const std::string& family, const char* key, Index n,
                                      const ModelConfig& c, const std::vector<LayerKind>& kinds,
                                      ErrorList& wrong) {
  if (has(kinds, Mixer::attention) || has(kinds, Mixer::mla))
    wrong.add(divides(family, key, n, "num_attention_heads", c.num_attention_heads));
  if (has(kinds, Mixer::attention)) wrong.add(check_groups(family, key, n, c));
  if (has(kinds, Mixer::mamba2)) {
    wrong.add(divides(family, key, n, "mamba_num_heads", c.mamba2.heads));
    if (c.mamba2.groups != 1)
      wrong.add(divides(family, key, n, "n_groups", c.mamba2.groups,
                        "; only a single group is repeated"));
  }
  if (has(kinds, Mixer::gated_delta))
    wrong.add(divides(family, key, n, "linear_num_key_heads", c.gated_delta.key_heads));
}

void EngineLayoutBuilder::check_widths(const std::string& family, const char* key, Index n,
                                       bool whole_shared, const ModelConfig& c,
                                       const std::vector<LayerKind>& kinds, ErrorList& wrong) {
  if (has(kinds, Ffn::dense))
    wrong.add(divides(family, key, n, "intermediate_size", c.intermediate_size));
  if (!whole_shared && has(kinds, Ffn::experts) && c.shared_expert_size > 0)
    wrong.add(divides(family, key, n, "the shared experts' width", c.shared_expert_size));
}

void EngineLayoutBuilder::check_experts(const std::string& family, const char* key, Index n,
                                        const ModelConfig& c, const std::vector<LayerKind>& kinds,
                                        const char* hint, ErrorList& wrong) {
  if (has(kinds, Ffn::experts))
    wrong.add(divides(family, key, n, "moe_intermediate_size", c.moe_intermediate_size, hint));
}

void EngineLayoutBuilder::check_tp_of_experts(Index tp, const ModelConfig& c,
                                              const std::vector<LayerKind>& kinds,
                                              ErrorList& wrong) {
  if (!has(kinds, Ffn::experts) || tp <= c.num_experts) return;
  wrong.refuse(fmt::format("tp={} exceeds num_experts={}, which the modules of {} do not support",
                           tp, c.num_experts, c.architecture));
}

// Mixers. Attention stacks the rank's q, k and v heads; MLA keeps its down-projections whole; Mamba
// and gated delta nets cut packed parameters part by part.

Result<> EngineLayoutBuilder::attention(const Layer& l) {
  const auto hf = [&](const char* rest) { return hf_.mixer(l.at, rest); };
  const CutId kv = in_units(d_.heads, c_.head_dim);
  RESHARD_TRY(stacked(mixer(l, "qkv_proj"),
                      {{hf("q_proj"), heads_}, {hf("k_proj"), kv}, {hf("v_proj"), kv}},
                      c_.attention_bias && d_.qkv_bias));
  RESHARD_TRY(
      row(mixer(l, "o_proj"), hf("o_proj"), heads_, c_.attention_output_bias && d_.output_bias));
  if (!d_.qkv_bias) omit_biases(l, {"q_proj", "k_proj", "v_proj"});
  if (!d_.output_bias) omit_biases(l, {"o_proj"});
  if (c_.attention_sinks)
    RESHARD_TRY(vector(mixer(l, "sinks"), hf("sinks"), heads_, in(d_.sinks_dtype)));
  if (!c_.qk_norm) return {};
  RESHARD_TRY(replicated(mixer(l, "q_norm.weight"), hf("q_norm.weight")));
  return replicated(mixer(l, "k_norm.weight"), hf("k_norm.weight"));
}

Result<> EngineLayoutBuilder::mla(const Layer& l) {
  const auto hf = [&](const char* rest) { return hf_.mixer(l.at, rest); };
  const CutId whole(0);
  if (c_.mla.q_rank > 0) {
    RESHARD_TRY(stacked(mixer(l, d_.fused_qkv_a),
                        {{hf("q_a_proj"), whole}, {hf("kv_a_proj_with_mqa"), whole}}, false));
    RESHARD_TRY(replicated(mixer(l, "q_a_layernorm.weight"), hf("q_a_layernorm.weight")));
    RESHARD_TRY(column(mixer(l, "q_b_proj"), hf("q_b_proj"), heads_));
  } else {
    RESHARD_TRY(column(mixer(l, "q_proj"), hf("q_proj"), heads_));
    RESHARD_TRY(column(mixer(l, "kv_a_proj_with_mqa"), hf("kv_a_proj_with_mqa"), whole));
  }
  RESHARD_TRY(replicated(mixer(l, "kv_a_layernorm.weight"), hf("kv_a_layernorm.weight")));
  RESHARD_TRY(column(mixer(l, "kv_b_proj"), hf("kv_b_proj"), heads_));
  // The modules of both engines have no biases here, regardless of attention_bias.
  omit_biases(l, {"q_a_proj", "kv_a_proj_with_mqa", "o_proj"});
  return row(mixer(l, "o_proj"), hf("o_proj"), heads_);
}

void EngineLayoutBuilder::omit_biases(const Layer& l,
                                      std::initializer_list<const char*> projections) {
  for (const char* projection : projections)
    if (const auto id = m_.find(hf_.mixer(l.at, std::string(projection) + ".bias"))) b_.omit(*id);
}

Result<> EngineLayoutBuilder::packed(const std::string& name, const std::string& hf,
                                     std::initializer_list<std::pair<Index, CutId>> runs) {
  const TensorId id = RESHARD_TRY(find(hf));
  const Dims& shape = m_[id].shape;
  std::vector<Section> parts;
  Index begin = 0;
  for (const auto& [rows, how] : runs) {
    Section section{shape, {how}, {}};
    section.extent[0] = rows;
    place(section, id, Box::whole(shape).with(0, Interval{begin, begin + rows}),
          Dims::filled(shape.size(), 0));
    parts.push_back(std::move(section));
    begin += rows;
  }
  add(name, 0, std::move(parts));
  return {};
}

Result<> EngineLayoutBuilder::mamba2(const Layer& l) {
  const Mamba2Config& m = c_.mamba2;
  const auto hf = [&](const char* rest) { return hf_.mixer(l.at, rest); };
  const Index inner = m.inner(), groups = m.groups * m.state;
  // B and C follow the heads of their group; a single group is whole on every rank.
  const CutId group = in_units(d_.heads, m.state);
  for (const char* kind : {"weight", "bias"}) {
    const bool bias = kind[0] == 'b';
    if (!bias || m.bias)
      RESHARD_TRY(packed(
          mixer(l, std::string("in_proj.") + kind), hf((std::string("in_proj.") + kind).c_str()),
          {{inner, heads_}, {inner, heads_}, {groups, group}, {groups, group}, {m.heads, heads_}}));
    if (!bias || m.conv_bias)
      RESHARD_TRY(packed(mixer(l, std::string("conv1d.") + kind),
                         hf((std::string("conv1d.") + kind).c_str()),
                         {{inner, heads_}, {groups, group}, {groups, group}}));
  }
  RESHARD_TRY(vector(mixer(l, "A"), hf("A_log"), heads_,
                     {.map = ValueMap::negated_exp, .dtype = DType::f32}));
  RESHARD_TRY(vector(mixer(l, "D"), hf("D"), heads_));
  RESHARD_TRY(vector(mixer(l, "dt_bias"), hf("dt_bias"), heads_));
  RESHARD_TRY(vector(mixer(l, "norm.weight"), hf("norm.weight"), heads_));
  return row(mixer(l, "out_proj"), hf("out_proj"), heads_, m.bias);
}

Result<> EngineLayoutBuilder::gated_delta(const Layer& l) {
  const GatedDeltaConfig& g = c_.gated_delta;
  const auto hf = [&](const char* rest) { return hf_.mixer(l.at, rest); };
  const Index keys = g.key_heads * g.key_dim, values = g.value_heads * g.value_dim;
  // The checkpoint interleaves both by key head, so runs of rows are runs of heads.
  RESHARD_TRY(column(mixer(l, "in_proj_qkvz"), hf("in_proj_qkvz"), heads_));
  RESHARD_TRY(column(mixer(l, "in_proj_ba"), hf("in_proj_ba"), heads_));
  RESHARD_TRY(packed(mixer(l, "conv1d.weight"), hf("conv1d.weight"),
                     {{keys, heads_}, {keys, heads_}, {values, heads_}}));
  RESHARD_TRY(vector(mixer(l, "A_log"), hf("A_log"), heads_, in(DType::f32)));
  RESHARD_TRY(vector(mixer(l, "dt_bias"), hf("dt_bias"), heads_));
  RESHARD_TRY(
      vector(mixer(l, "norm.weight"), hf("norm.weight"), CutId(0), in(d_.delta_norm_dtype)));
  return row(mixer(l, "out_proj"), hf("out_proj"), heads_);
}

// Modules for multi-token prediction: a separate draft model beside the last stage.

Result<> EngineLayoutBuilder::mtp_module(Index module) {
  const HfNames::Mtp names = hf_.mtp(module);
  const Index block = static_cast<Index>(c_.mtp_block.size());
  const auto in_block = [&](Index i) {
    const Index k = module * block + i;
    const LayerAt at(i, module);
    if (d_.nextn && c_.mtp_names == MtpNames::trailing) return Layer{at, d_.prefix + "model."};
    return c_.mtp_names == MtpNames::trailing
               ? Layer{at, fmt::format("{}model.layers.{}.", d_.prefix, c_.num_hidden_layers + k)}
               : Layer{at, fmt::format("{}mtp.layers.{}.", d_.prefix, k)};
  };
  const bool trailing = c_.mtp_names == MtpNames::trailing;
  const Layer first = in_block(0), last = in_block(block - 1);
  if (c_.mtp_names == MtpNames::qwen) {
    // The modules share what is outside their layers.
    if (module == 0) {
      for (const std::string& hf : {names.embedding_norm, names.hidden_norm, names.final_norm})
        RESHARD_TRY(replicated(d_.prefix + hf, hf));
      RESHARD_TRY(
          vector(d_.prefix + names.projection, names.projection, d_.nextn ? CutId(0) : dense_));
    }
  } else {
    RESHARD_TRY(same(first, names.embedding_norm));
    RESHARD_TRY(same(first, names.hidden_norm));
    // Nemotron-H creates it in the dtype of the config, regardless of the dtype of the model.
    RESHARD_TRY(vector(own(first, names.projection), names.projection, trailing ? CutId(0) : dense_,
                       in(trailing ? std::nullopt : config_dtype())));
    RESHARD_TRY(same(last, names.final_norm));
  }
  if (trailing && !d_.nextn)
    RESHARD_TRY(vocabulary(last.name + "shared_head.head.weight",
                           c_.tie_word_embeddings ? hf_.embedding() : hf_.lm_head(), head_,
                           d_.head_rows));
  for (Index i = 0; i < block; ++i) {
    Layer l = in_block(i);
    if (trailing) l.name += d_.nextn ? "decoder." : "mtp_block.";
    RESHARD_TRY(layer(l));
  }
  return {};
}

void EngineLayoutBuilder::omit_mtp() {
  if (c_.num_mtp == 0) return;
  const Index block = static_cast<Index>(c_.mtp_block.size());
  std::vector<std::string> starts = {"mtp."};
  if (c_.mtp_names == MtpNames::trailing) {
    starts.clear();
    for (Index m = 0; m < c_.num_mtp; ++m)
      for (Index i = 0; i < block; ++i) starts.push_back(hf_.layer(LayerAt(i, m), ""));
  }
  for (std::size_t t = 0; t < m_.tensors().size(); ++t)
    for (const std::string& start : starts)
      if (m_.tensors()[t].name.starts_with(start)) b_.omit(TensorId(static_cast<TensorId::rep>(t)));
}

}  // namespace reshard::families
