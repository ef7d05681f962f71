// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/engines/engine_layout_builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard {
namespace {

bool has(const std::vector<LayerKind>& kinds, Mixer mixer) {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& kind) { return kind.mixer == mixer; });
}

bool has(const std::vector<LayerKind>& kinds, Ffn ffn) {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& kind) { return kind.ffn == ffn; });
}

}  // namespace

EngineLayoutBuilder::EngineLayoutBuilder(const LayoutSpec& spec, const EngineDesign& design,
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
  // A draft model on the last stage embeds for itself.
  const bool draft = d_.mtp && c_.num_mtp > 0 && c_.mtp_names == MtpNames::trailing;
  const bool again = last && ((tied && !d_.tied_head) || draft);
  if (first || d_.embedding_everywhere || again)
    RESHARD_TRY(vocabulary(d_.prefix + "model." + d_.embedding_module + ".weight", hf_.embedding(),
                           embedding_, d_.embedding_rows));
  if (last || d_.norm_everywhere)
    RESHARD_TRY(replicated(d_.prefix + "model." + hf_.final_norm().substr(hf_.decoder().size()),
                           hf_.final_norm()));
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
  const bool sinks = c_.attention_sinks && hf_.kind(l.at).mixer == Mixer::attention;
  return fmt::format("{}{}.{}", l.name,
                     sinks ? d_.sinks_module : std::string(hf_.mixer_module(l.at)), rest);
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
  if (!c_.says_dtype || !is_convertible(c_.dtype)) return std::nullopt;
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
                                      Violations& wrong) {
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
                                       const std::vector<LayerKind>& kinds, Violations& wrong) {
  if (has(kinds, Ffn::dense))
    wrong.add(divides(family, key, n, "intermediate_size", c.intermediate_size));
  if (!whole_shared && has(kinds, Ffn::experts) && c.shared_expert_size > 0)
    wrong.add(divides(family, key, n, "the shared experts' width", c.shared_expert_size));
}

void EngineLayoutBuilder::check_experts(const std::string& family, const char* key, Index n,
                                        const ModelConfig& c, const std::vector<LayerKind>& kinds,
                                        const char* hint, Violations& wrong) {
  if (has(kinds, Ffn::experts))
    wrong.add(divides(family, key, n, "moe_intermediate_size", c.moe_intermediate_size, hint));
}

void EngineLayoutBuilder::check_tp_of_experts(Index tp, const ModelConfig& c,
                                              const std::vector<LayerKind>& kinds,
                                              Violations& wrong) {
  if (!has(kinds, Ffn::experts) || tp <= c.num_experts) return;
  wrong.refuse(fmt::format("tp={} exceeds num_experts={}, which {}'s modules refuse", tp,
                           c.num_experts, c.architecture));
}

}  // namespace reshard
