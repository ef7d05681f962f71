// SPDX-License-Identifier: Apache-2.0
// The mixers of an engine: attention stacks the rank's q, k and v heads, MLA keeps its first
// projections whole, Mamba and gated delta nets cut packed parameters part by part.
#include "reshard/model/families/engines/engine_layout_builder.h"

namespace reshard {

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
  // Neither engine's modules have biases here, whatever attention_bias says.
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
  // B and C follow the heads of their group: a single group is whole on every rank.
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
  // Both are interleaved by key head in the checkpoint: runs of rows are runs of heads.
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

}  // namespace reshard
