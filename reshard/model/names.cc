// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/names.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace reshard {
namespace {

/// Appends a number without a temporary string: models have tens of thousands of names.
void append(std::string& text, Index number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

std::string joined(std::string_view root, Index number, std::string_view rest) {
  std::string text;
  text.reserve(96);
  text += root;
  append(text, number);
  text += '.';
  text += rest;
  return text;
}

}  // namespace

HfNames::HfNames(const ModelConfig& config)
    : c_(config),
      mixtral_(config.model_type == "mixtral"),
      nemotron_(config.model_type == "nemotron_h"),
      decoder_(config.decoder_prefix.value_or(nemotron_ ? "backbone." : "model.")),
      layers_(decoder_ + "layers.") {}

std::string HfNames::embedding() const {
  return decoder_ + (nemotron_ ? "embeddings.weight" : "embed_tokens.weight");
}

std::string HfNames::final_norm() const {
  return decoder_ + (nemotron_ ? "norm_f.weight" : "norm.weight");
}

const LayerKind& HfNames::kind(LayerAt at) const {
  return at.mtp < 0 ? c_.kind(at.i) : c_.mtp_block[static_cast<std::size_t>(at.i)];
}

std::string HfNames::layer(LayerAt at, std::string_view rest) const {
  if (at.mtp < 0) return joined(layers_, at.i, rest);
  const Index block = static_cast<Index>(c_.mtp_block.size()), k = at.mtp * block + at.i;
  if (c_.mtp_names == MtpNames::trailing) return joined(layers_, c_.num_hidden_layers + k, rest);
  return joined("mtp.layers.", k, rest);
}

std::string_view HfNames::mixer_module(LayerAt at) const {
  if (nemotron_) return "mixer";
  return kind(at).mixer == Mixer::gated_delta ? "linear_attn" : "self_attn";
}

std::string HfNames::mixer(LayerAt at, std::string_view rest) const {
  std::string text = layer(at, mixer_module(at));
  text += '.';
  text += rest;
  return text;
}

std::string_view HfNames::ffn_module() const {
  if (nemotron_) return "mixer";
  return mixtral_ ? "block_sparse_moe" : "mlp";
}

std::string HfNames::ffn(LayerAt at, std::string_view rest) const {
  std::string text = layer(at, ffn_module());
  text += '.';
  text += rest;
  return text;
}

std::string HfNames::mixer_norm(LayerAt at) const {
  return layer(at, nemotron_ ? "norm.weight" : "input_layernorm.weight");
}

std::string HfNames::ffn_norm(LayerAt at) const {
  if (nemotron_) return layer(at, "norm.weight");
  return layer(at, c_.sandwich_norms ? "pre_feedforward_layernorm.weight"
                                     : "post_attention_layernorm.weight");
}

std::string HfNames::mixer_post_norm(LayerAt at) const {
  return layer(at, "post_attention_layernorm.weight");
}

std::string HfNames::ffn_post_norm(LayerAt at) const {
  return layer(at, "post_feedforward_layernorm.weight");
}

std::string HfNames::router(LayerAt at) const {
  return ffn(at, c_.router_bias ? "router.weight" : "gate.weight");
}

std::string HfNames::router_bias(LayerAt at) const { return ffn(at, "router.bias"); }

std::string HfNames::router_expert_bias(LayerAt at) const {
  return ffn(at, "gate.e_score_correction_bias");
}

std::string HfNames::expert(LayerAt at, Index e, std::string_view projection) const {
  std::string text = ffn(at, "experts.");
  append(text, e);
  text += '.';
  text += projection;
  text += ".weight";
  return text;
}

std::string HfNames::expert_gate(LayerAt at, Index e) const {
  return expert(at, e, mixtral_ ? "w1" : "gate_proj");
}

std::string HfNames::expert_up(LayerAt at, Index e) const {
  return expert(at, e, mixtral_ ? "w3" : "up_proj");
}

std::string HfNames::expert_down(LayerAt at, Index e) const {
  return expert(at, e, mixtral_ ? "w2" : "down_proj");
}

std::string HfNames::shared_expert(LayerAt at, std::string_view rest) const {
  std::string text = ffn(at, c_.shared_expert_gate ? "shared_expert." : "shared_experts.");
  text += rest;
  return text;
}

HfNames::Mtp HfNames::mtp(Index module) const {
  const LayerAt first(0, module), last(static_cast<Index>(c_.mtp_block.size()) - 1, module);
  if (c_.mtp_names == MtpNames::qwen)
    return {"mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight",
            "mtp.norm.weight"};
  return {layer(first, "enorm.weight"), layer(first, "hnorm.weight"),
          layer(first, "eh_proj.weight"),
          layer(last, c_.mtp_names == MtpNames::trailing ? "shared_head.norm.weight"
                                                         : "final_layernorm.weight")};
}

std::vector<std::pair<std::string, std::string>> HfNames::aliases() const {
  std::vector<std::pair<std::string, std::string>> out;
  if (c_.mtp_names != MtpNames::trailing || !c_.mtp_copies) return out;
  for (Index m = 0; m < c_.num_mtp; ++m) {
    out.emplace_back(layer({0, m}, "embed_tokens.weight"), embedding());
    if (c_.tie_word_embeddings || c_.has_head)
      out.emplace_back(layer({0, m}, "shared_head.head.weight"),
                       c_.tie_word_embeddings ? embedding() : lm_head());
  }
  return out;
}

void detect_prefixes(const ModelSpec& stored, ModelConfig& config) {
  const HfNames usual(config);
  if (stored.find(usual.embedding())) return;
  const auto behind = [&](const std::string& name) { return name.substr(usual.decoder().size()); };
  const std::string embedding = behind(usual.embedding()), norm = behind(usual.final_norm());
  std::vector<std::string> found;
  for (const CanonicalTensor& t : stored.tensors()) {
    const std::string prefix(std::string_view(t.name).substr(
        0, t.name.size() - std::min(t.name.size(), embedding.size())));
    if ((prefix.empty() || prefix.ends_with('.')) && t.name.ends_with(embedding) &&
        stored.find(prefix + norm))
      found.push_back(prefix);
  }
  if (found.size() != 1) return;
  // Modules of transformers 5 say "model." where Nemotron-H's checkpoints say "backbone.": a form
  // of the same names (module_name()).
  if (!config.decoder_prefix && found[0] == "model.") return;
  config.decoder_prefix = found[0];
  // The head is beside the decoder or at an outer level: "language_model.lm_head.weight".
  for (std::string outer = found[0]; !outer.empty();) {
    if (stored.find(outer + usual.lm_head())) {
      config.head_prefix = outer;
      return;
    }
    const std::size_t dot = outer.rfind('.', outer.size() - 2);
    outer.resize(dot == std::string::npos ? 0 : dot + 1);
  }
}

}  // namespace reshard
