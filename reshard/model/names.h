// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/model/config.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// A layer: decoder layer `i` (from 0), or layer `i` of multi-token prediction module `mtp`.
struct LayerAt {
  Index i = 0;
  Index mtp = -1;
  LayerAt() = default;
  LayerAt(Index layer) : i(layer) {}  // NOLINT: a plain number means a decoder layer
  LayerAt(Index layer, Index module) : i(layer), mtp(module) {}
};

/// Hugging Face names of the tensors of one architecture. Experts e count from 0.
class HfNames {
 public:
  /// The config must outlive the names.
  explicit HfNames(const ModelConfig& config);

  std::string embedding() const;
  std::string final_norm() const;
  std::string lm_head() const { return c_.head_prefix + "lm_head.weight"; }
  /// The prefix of the decoder's names: "model.", "backbone.", "model.language_model.".
  const std::string& decoder() const { return decoder_; }

  const LayerKind& kind(LayerAt at) const;
  /// "model.layers.3." + rest
  std::string layer(LayerAt at, std::string_view rest) const;
  /// The layer's mixer: "model.layers.3.self_attn." + rest, "backbone.layers.0.mixer." + rest.
  std::string mixer(LayerAt at, std::string_view rest) const;
  /// "self_attn", "linear_attn" or "mixer".
  std::string_view mixer_module(LayerAt at) const;
  /// The layer's dense MLP or experts: "model.layers.3.mlp." + rest.
  std::string ffn(LayerAt at, std::string_view rest) const;
  /// "mlp", "block_sparse_moe" or "mixer".
  std::string_view ffn_module() const;

  /// The norms before the mixer and before the MLP; the same norm in layers that have only one of
  /// both.
  std::string mixer_norm(LayerAt at) const;
  std::string ffn_norm(LayerAt at) const;
  /// The norms after the mixer and after the MLP. @pre config.sandwich_norms
  std::string mixer_post_norm(LayerAt at) const;
  std::string ffn_post_norm(LayerAt at) const;

  std::string router(LayerAt at) const;
  /// @pre config.router_bias
  std::string router_bias(LayerAt at) const;
  /// @pre config.router_expert_bias
  std::string router_expert_bias(LayerAt at) const;
  std::string expert_gate(LayerAt at, Index e) const;
  std::string expert_up(LayerAt at, Index e) const;
  std::string expert_down(LayerAt at, Index e) const;
  /// "…shared_experts." + rest
  std::string shared_expert(LayerAt at, std::string_view rest) const;

  /// The tensors of a multi-token prediction module outside its layers.
  struct Mtp {
    std::string embedding_norm, hidden_norm;  ///< enorm, hnorm
    std::string projection;  ///< eh_proj [hidden, 2 * hidden]; columns: embedding, hidden.
    std::string final_norm;  ///< shared by all modules if mtp_names is qwen.
  };
  Mtp mtp(Index module) const;

  /// Copies of tensors that a checkpoint stores under a second name: (alias, canonical name).
  std::vector<std::pair<std::string, std::string>> aliases() const;

 private:
  std::string expert(LayerAt at, Index e, std::string_view projection) const;
  const ModelConfig& c_;
  bool mixtral_, nemotron_;
  std::string decoder_, layers_;
};

/// Sets decoder_prefix and head_prefix of the config from the tensors of a checkpoint. Looks for
/// one prefix that has both the embedding and the final norm, or for these without any; does
/// nothing if they have the class's own names or if several prefixes qualify.
void detect_prefixes(const ModelSpec& stored, ModelConfig& config);

}  // namespace reshard
