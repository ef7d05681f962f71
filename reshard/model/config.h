// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/index/box.h"

namespace reshard {

/// What a Hugging Face config.json says of a decoder, in the words of that file. Read by
/// io/hf_config.h.
///
/// Invariant (checked by the reader): sizes are positive and small enough that no product of two
/// overflows.
struct ModelConfig {
  std::string architecture;   ///< architectures[0], as "Qwen3MoeForCausalLM".
  std::string model_type;     ///< as "qwen3_moe".
  DType dtype = DType::bf16;  ///< torch_dtype or dtype; bfloat16 when absent.

  Index hidden_size = 0;
  Index intermediate_size = 0;  ///< of the dense MLP.
  Index num_hidden_layers = 0;
  Index num_attention_heads = 0;
  Index num_key_value_heads = 0;  ///< when absent, what transformers takes for the class.
  Index head_dim = 0;             ///< when absent, hidden_size / num_attention_heads; Qwen3: 128.
  Index vocab_size = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< q, k, v projections have biases (Qwen2: always).
  bool attention_output_bias =
      false;  ///< o_proj has a bias too (Llama's attention_bias means both).
  bool mlp_bias = false;
  bool qk_norm = false;  ///< per-head RMSNorm on q and k (Qwen3).

  Index num_experts = 0;               ///< 0: dense. num_experts or num_local_experts.
  Index moe_intermediate_size = 0;     ///< Mixtral: intermediate_size.
  Index decoder_sparse_step = 1;       ///< layer i is sparse when (i + 1) % step == 0 ...
  std::vector<Index> mlp_only_layers;  ///< ... and is not named here.
  bool router_expert_bias = false;     ///< the router carries e_score_correction_bias (fp32).

  bool is_moe() const { return num_experts > 0; }
  /// True when layer i (from 0) has experts instead of a dense MLP.
  bool is_moe_layer(Index i) const {
    if (!is_moe() || decoder_sparse_step <= 0 || (i + 1) % decoder_sparse_step != 0) return false;
    for (Index dense : mlp_only_layers)
      if (dense == i) return false;
    return true;
  }
};

}  // namespace reshard
