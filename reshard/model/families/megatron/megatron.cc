// SPDX-License-Identifier: Apache-2.0
// The structure of Megatron-Core's models: megatron/core/models/gpt/gpt_model.py,
// models/mamba/mamba_model.py, transformer/transformer_block.py, multi_token_prediction.py
// (megatron-core 0.16.1).
#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/families/megatron/builder.h"

namespace reshard::families {
namespace {

bool is_hybrid(const ModelConfig& c) {
  return std::any_of(c.layers.begin(), c.layers.end(), [](const LayerKind& k) {
    return k.mixer == Mixer::none || k.ffn == Ffn::none;
  });
}

}  // namespace

MegatronBuilder::MegatronBuilder(const LayoutSpec& spec, const MegatronSizes& sizes,
                                 const FamilyInput& input)
    : FamilyBuilder(spec, input),
      s_(sizes),
      hybrid_(is_hybrid(c_)),
      mtp_(sizes.mtp ? c_.num_mtp : 0) {}

Result<ModelLayout> MegatronBuilder::build(const LayoutSpec& spec) {
  ErrorList wrong("megatron");
  check(s_, c_, wrong);
  const auto chunks = wrong.take(pipeline_chunks(s_, c_.num_hidden_layers, mtp_, hybrid_));
  wrong.add(read_dtype(spec));
  RESHARD_TRY(wrong.result());
  RESHARD_TRY(make_meshes());
  // Not vpp > 1: the key `layout` alone also makes chunks.
  chunked_ = static_cast<Index>(chunks.size()) > s_.pp;
  for (const PipelineChunk& c : chunks) RESHARD_TRY(chunk(c));
  if (mtp_ < c_.num_mtp) omit_mtp();
  omit_input_scales();
  // A trainer's modules have no KV cache.
  for (Index i = 0; i < c_.num_hidden_layers; ++i)
    for (const auto& [hf, scale] : cache_scales(LayerAt(i))) b_.omit(RESHARD_TRY(find(hf)));
  return std::move(b_).finish();
}

Result<> MegatronBuilder::make_meshes() {
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

Result<> MegatronBuilder::chunk(const PipelineChunk& chunk) {
  stage_ = chunk.stage;
  ranks_ = b_.ranks_where(mesh_, {{dense_pp_, chunk.stage}});
  const std::string front = chunked_ ? fmt::format("model{}.", chunk.chunk) : "";
  // The stage of the MTP layers has its own embedding.
  if (chunk.embedding || chunk.mtp)
    RESHARD_TRY(word_embeddings(front + "embedding.word_embeddings.weight", hf_.embedding()));
  for (Index i = 0; i < chunk.num_layers; ++i)
    RESHARD_TRY(
        layer({LayerAt(chunk.first_layer + i), fmt::format("{}decoder.layers.{}.", front, i)}));
  const bool last_layer =
      chunk.num_layers > 0 && chunk.first_layer + chunk.num_layers == c_.num_hidden_layers;
  // With MTP layers the final norm stays with the last decoder layer, not with the loss.
  if (mtp_ > 0 && !hybrid_ ? last_layer : chunk.loss)
    RESHARD_TRY(
        norm(front + (hybrid_ ? "decoder.final_norm.weight" : "decoder.final_layernorm.weight"),
             hf_.final_norm()));
  if (chunk.mtp) RESHARD_TRY(mtp(front));
  if (!chunk.loss || (c_.tie_word_embeddings && chunk.embedding)) return {};
  return word_embeddings(front + "output_layer.weight",
                         c_.tie_word_embeddings ? hf_.embedding() : hf_.lm_head());
}

Result<> MegatronBuilder::mtp(const std::string& front) {
  const Index block = static_cast<Index>(c_.mtp_block.size());
  for (Index m = 0; m < mtp_; ++m) {
    const std::string at = fmt::format("{}mtp.layers.{}.", front, m);
    const auto names = hf_.mtp(m);
    RESHARD_TRY(norm(at + "enorm.weight", names.embedding_norm));
    RESHARD_TRY(norm(at + "hnorm.weight", names.hidden_norm));
    add(at + "eh_proj.weight", 0,
        sections(whole_tensor(m_, RESHARD_TRY(find(names.projection)), {tp_})));
    for (Index i = 0; i < block; ++i)
      RESHARD_TRY(layer({LayerAt(i, m), hybrid_ ? fmt::format("{}mtp_model_layer.layers.{}.", at, i)
                                        : s_.new_mtp_names ? at + "mtp_model_layer."
                                                           : at + "transformer_layer."}));
    RESHARD_TRY(norm(at + "final_layernorm.weight", names.final_norm));
  }
  return {};
}

Result<> MegatronBuilder::layer(const Layer& l) {
  const LayerKind kind = hf_.kind(l.at);
  switch (kind.mixer) {
    case Mixer::attention: RESHARD_TRY(attention(l)); break;
    case Mixer::mla: RESHARD_TRY(mla(l)); break;
    case Mixer::mamba2: RESHARD_TRY(mamba2(l)); break;
    case Mixer::gated_delta: RESHARD_TRY(gated_delta(l)); break;
    case Mixer::none: break;
  }
  switch (kind.ffn) {
    case Ffn::dense: return mlp(l);
    case Ffn::experts: return experts(l);
    case Ffn::none: break;
  }
  return {};
}

Result<> MegatronBuilder::word_embeddings(std::string name, const std::string& hf) {
  return vocabulary(std::move(name), hf, s_.vocab_multiple * s_.tp);
}

Result<> MegatronBuilder::norm(std::string name, const std::string& hf, bool centred) {
  using Gamma = MegatronSizes::Gamma;
  // One flag of the config (layernorm_zero_centered_gamma) applies to all norms of a model,
  // including those that a zero-centred checkpoint stores as they are.
  const bool usual = s_.gamma == Gamma::usual;
  const bool wanted = usual ? c_.zero_centered_norms : s_.gamma == Gamma::zero_centered;
  ValueMap map = ValueMap::identity;
  if (s_.gamma != Gamma::stored && wanted != centred)
    map = centred ? ValueMap::plus_one : ValueMap::minus_one;
  add(std::move(name), 0, sections(whole_tensor(m_, RESHARD_TRY(find(hf)))), {.map = map});
  return {};
}

Result<> MegatronBuilder::parallel(const std::string& name, const std::string& hf, int dim,
                                   bool bias) {
  const TensorId id = RESHARD_TRY(find(hf + ".weight"));
  add(name + ".weight", 0,
      sections(dim == 0 ? whole_tensor(m_, id, {tp_}) : whole_tensor(m_, id, {CutId(0), tp_})));
  if (!bias) return {};
  const TensorId b = RESHARD_TRY(find(hf + ".bias"));
  add(name + ".bias", 0, sections(dim == 0 ? whole_tensor(m_, b, {tp_}) : whole_tensor(m_, b)));
  return {};
}

Section MegatronBuilder::stacked(const std::vector<Rows>& list, CutId how) const {
  Section section{m_[list[0].tensor].shape, {how}, {}};
  section.extent[0] = 0;
  for (const Rows& r : list) section.extent[0] += r.rows.size();
  Dims at = Dims::filled(section.extent.size(), 0);
  for (const Rows& r : list) {
    place(section, r.tensor, Box::whole(m_[r.tensor].shape).with(0, r.rows), at);
    at[0] += r.rows.size();
  }
  return section;
}

}  // namespace reshard::families

namespace reshard {

LayoutSpec with_explicit_defaults(LayoutSpec spec, const ModelConfig& c) {
  const bool mixed = c.zero_centered_norms &&
                     std::any_of(c.layers.begin(), c.layers.end(),
                                 [](const auto& kind) { return kind.mixer == Mixer::gated_delta; });
  if (spec.family == "megatron" && mixed) spec.keys.try_emplace("gamma", "zero_centered");
  return spec;
}

Result<ModelLayout> megatron_layout(const LayoutSpec& spec, const FamilyInput& input) {
  using namespace families;
  if (input.config == nullptr)
    return fail(Code::invalid_argument, "megatron: needs the model's config.json");
  const MegatronSizes sizes = RESHARD_TRY(read_megatron_sizes(spec));
  return MegatronBuilder(spec, sizes, input).build(spec);
}

Result<std::vector<std::string>> layout_notes(const LayoutSpec& spec, const ModelConfig* config) {
  using namespace families;
  std::vector<std::string> notes;
  if (spec.family != "megatron" || config == nullptr) return notes;
  const MegatronSizes s = RESHARD_TRY(read_megatron_sizes(spec));
  const Index layers = config->num_hidden_layers;
  if (accounts_by_rule(s, layers, is_hybrid(*config)))
    notes.push_back(fmt::format(
        "counts embedding and loss as a layer each: pp*vpp={} divides num_hidden_layers={} plus 2 "
        "(account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split)",
        s.pp * s.vpp, layers));
  return notes;
}

}  // namespace reshard
