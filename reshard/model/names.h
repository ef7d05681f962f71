// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/config.h"

namespace reshard {

/// Hugging Face names of the tensors of one architecture; i is a layer from 0, e an expert from 0.
class HfNames {
 public:
  explicit HfNames(const ModelConfig& config) : mixtral_(config.model_type == "mixtral") {}

  std::string embedding() const { return "model.embed_tokens.weight"; }
  std::string final_norm() const { return "model.norm.weight"; }
  std::string lm_head() const { return "lm_head.weight"; }
  /// "model.layers.3." + rest
  std::string layer(Index i, const std::string& rest) const;
  /// The module that holds router and experts: "mlp" or "block_sparse_moe".
  std::string moe() const { return mixtral_ ? "block_sparse_moe" : "mlp"; }
  std::string router(Index i) const { return layer(i, moe() + ".gate.weight"); }
  std::string router_bias(Index i) const {
    return layer(i, moe() + ".gate.e_score_correction_bias");
  }
  std::string expert_gate(Index i, Index e) const {
    return expert(i, e, mixtral_ ? "w1" : "gate_proj");
  }
  std::string expert_up(Index i, Index e) const {
    return expert(i, e, mixtral_ ? "w3" : "up_proj");
  }
  std::string expert_down(Index i, Index e) const {
    return expert(i, e, mixtral_ ? "w2" : "down_proj");
  }

 private:
  std::string expert(Index i, Index e, const char* projection) const;
  bool mixtral_;
};

}  // namespace reshard
