// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/index/box.h"

namespace reshard {

/// The part of a layer that mixes positions.
enum class Mixer : std::uint8_t { attention, mla, mamba2, gated_delta, none };
/// The feed-forward part of a layer.
enum class Ffn : std::uint8_t { dense, experts, none };

struct LayerKind {
  Mixer mixer = Mixer::attention;
  Ffn ffn = Ffn::dense;
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

/// Multi-head latent attention (DeepSeek). Sizes in elements.
struct MlaConfig {
  Index q_rank = 0;  ///< rank of q_a_proj; 0: there is a single q_proj.
  Index kv_rank = 0;
  Index nope_dim = 0, rope_dim = 0;  ///< of a query or key head: without and with position.
  Index value_dim = 0;               ///< of a value head.
  bool bias = false;                 ///< q_a_proj, kv_a_proj_with_mqa and o_proj have biases.
};

/// A Mamba-2 mixer. in_proj packs z and x (heads * head_dim rows each), B and C (groups * state
/// each) and dt (heads); conv1d packs x, B and C.
struct Mamba2Config {
  Index heads = 0, head_dim = 0, groups = 0, state = 0, kernel = 0;
  bool bias = false;  ///< in_proj and out_proj.
  bool conv_bias = true;
  Index inner() const { return heads * head_dim; }
};

/// A gated delta net (Qwen3-Next). Per key head, in_proj_qkvz packs q, k (key_dim rows each), v, z
/// (value_heads / key_heads * value_dim each), and in_proj_ba packs b, a (value_heads / key_heads
/// each). conv1d packs q, k, v of all heads.
struct GatedDeltaConfig {
  Index key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, kernel = 0;
};

/// How a checkpoint names the layers for multi-token prediction.
enum class MtpNames : std::uint8_t {
  trailing,  ///< model.layers.N + m, with embed_tokens and shared_head (DeepSeek, GLM).
  qwen,      ///< mtp.fc, mtp.norm, mtp.layers.m (Qwen3-Next).
  nemotron,  ///< mtp.layers.k, counted over all modules' layers (Nemotron-H).
};

/// A decoder as a Hugging Face config.json describes it, with the names of that file. Read by
/// io/hf/config.h.
///
/// Invariants, checked by the reader: sizes are positive and small enough that no product of two
/// overflows; `layers` has num_hidden_layers entries; mla, mamba2 and gated_delta are set if a
/// layer has that mixer, the expert sizes if a layer has experts.
struct ModelConfig {
  std::string architecture;   ///< architectures[0], as "Qwen3MoeForCausalLM".
  std::string model_type;     ///< as "qwen3_moe".
  DType dtype = DType::bf16;  ///< torch_dtype or dtype; bfloat16 when absent.
  bool has_dtype = false;     ///< the file gives the dtype.
  /// quant_method of the quantization_config ("fp8", "mxfp4"); empty for weights stored in `dtype`.
  /// All sizes here are those of the unquantised weights.
  std::string quantization;

  Index hidden_size = 0;
  Index intermediate_size = 0;  ///< of the dense MLP; 0 where no layer has one.
  Index num_hidden_layers = 0;  ///< without layers for multi-token prediction.
  Index num_attention_heads = 0;
  Index num_key_value_heads = 0;  ///< when absent, transformers' default for the class.
  Index head_dim = 0;             ///< when absent, hidden_size / num_attention_heads; Qwen3: 128.
  Index vocab_size = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< q, k, v projections have biases (Qwen2: always).
  bool attention_output_bias =
      false;  ///< o_proj has a bias too (Llama's attention_bias means both).
  bool mlp_bias = false;
  bool qk_norm = false;              ///< per-head RMSNorm on q and k (Qwen3).
  bool attention_sinks = false;      ///< one sink per head (gpt-oss).
  bool attention_gate = false;       ///< q_proj has query and gate rows, head by head (Qwen3-Next).
  bool gated_mlp = true;             ///< gate_proj and up_proj; false: up_proj alone (Nemotron-H).
  bool sandwich_norms = false;       ///< norms after attention and MLP too (Gemma-3).
  bool zero_centered_norms = false;  ///< norms store their weight minus 1 (Gemma-3, Qwen3-Next).

  std::vector<LayerKind> layers;
  MlaConfig mla;
  Mamba2Config mamba2;
  GatedDeltaConfig gated_delta;

  Index num_experts = 0;            ///< 0: dense. num_experts, num_local_experts, n_routed_experts.
  Index moe_intermediate_size = 0;  ///< Mixtral, gpt-oss: intermediate_size.
  Index moe_latent_size = 0;        ///< width of expert inputs (Nemotron-3 Super); 0: hidden_size.
  Index shared_expert_size = 0;     ///< total width of the shared experts; 0: none.
  bool shared_expert_gate = false;  ///< one row that gates the shared expert (Qwen3-Next).
  bool router_expert_bias = false;  ///< the router has an e_score_correction_bias (fp32).
  bool router_bias = false;         ///< the router is a linear layer with a bias (gpt-oss).
  /// Each projection of all experts is one tensor: gate_up [E, H, 2I] with alternating gate and up
  /// columns, down [E, I, H], both with biases (gpt-oss). Otherwise each expert and projection has
  /// its own tensor.
  bool stacked_experts = false;

  Index num_mtp = 0;                 ///< modules for multi-token prediction.
  std::vector<LayerKind> mtp_block;  ///< the layers of each.
  MtpNames mtp_names = MtpNames::trailing;
  bool mtp_copies =
      true;  ///< trailing modules repeat embedding and head, as published checkpoints do.

  /// Prefix of the decoder's names ("model.language_model."; empty: they have none). Absent: the
  /// prefix of the class, "model." or "backbone.".
  std::optional<std::string> decoder_prefix;
  std::string head_prefix;  ///< of lm_head.weight.
  /// The class is the decoder alone (Qwen3Model): engines make no head for it.
  bool is_bare = false;
  /// False if a checkpoint has no lm_head.weight, as those of embedding models; tied models need
  /// none.
  bool has_head = true;

  bool is_moe() const { return num_experts > 0; }
  const LayerKind& kind(Index i) const { return layers[static_cast<std::size_t>(i)]; }
  /// True if layer i (from 0) has experts instead of a dense MLP.
  bool is_moe_layer(Index i) const { return kind(i).ffn == Ffn::experts; }
  /// The kinds of all layers; with `mtp` also those of the modules for multi-token prediction.
  std::vector<LayerKind> kinds(bool mtp) const {
    std::vector<LayerKind> all = layers;
    if (mtp && num_mtp > 0) all.insert(all.end(), mtp_block.begin(), mtp_block.end());
    return all;
  }
  /// Input and output width of the routed experts.
  Index expert_width() const { return moe_latent_size > 0 ? moe_latent_size : hidden_size; }
};

}  // namespace reshard
