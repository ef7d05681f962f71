// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/names.h"

#include <array>
#include <charconv>

namespace reshard {
namespace {

/// Appends a number without a string of its own: models have tens of thousands of names.
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
      nemotron_(config.model_type == "nemotron_h") {}

std::string HfNames::embedding() const {
  return nemotron_ ? "backbone.embeddings.weight" : "model.embed_tokens.weight";
}

std::string HfNames::final_norm() const {
  return nemotron_ ? "backbone.norm_f.weight" : "model.norm.weight";
}

const LayerKind& HfNames::kind(LayerAt at) const {
  return at.mtp < 0 ? c_.kind(at.i) : c_.mtp_block[static_cast<std::size_t>(at.i)];
}

std::string HfNames::layer(LayerAt at, std::string_view rest) const {
  if (at.mtp < 0) return joined(nemotron_ ? "backbone.layers." : "model.layers.", at.i, rest);
  const Index block = static_cast<Index>(c_.mtp_block.size()), k = at.mtp * block + at.i;
  if (c_.mtp_names == MtpNames::trailing)
    return joined("model.layers.", c_.num_hidden_layers + k, rest);
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
    const std::string head = c_.tie_word_embeddings ? embedding() : lm_head();
    out.emplace_back(layer({0, m}, "embed_tokens.weight"), embedding());
    out.emplace_back(layer({0, m}, "shared_head.head.weight"), head);
  }
  return out;
}

}  // namespace reshard
