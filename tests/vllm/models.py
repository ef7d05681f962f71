# SPDX-License-Identifier: Apache-2.0
"""Small models of every architecture that reshard and vLLM both know, as their config.json.

Every stage of two or three has a layer with experts: some of vLLM's classes refuse one without.
"""

_COMMON = {
  "hidden_size": 256,
  "intermediate_size": 512,
  "num_hidden_layers": 5,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 64,
  "vocab_size": 300,
  "max_position_embeddings": 128,
  "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0,
  "hidden_act": "silu",
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}


def _model(architecture, model_type, **more):
  return _COMMON | {"architectures": [architecture], "model_type": model_type} | more


_QWEN3_MOE = _model(
  "Qwen3MoeForCausalLM",
  "qwen3_moe",
  **_EXPERTS,
  decoder_sparse_step=1,
  mlp_only_layers=[0],
  norm_topk_prob=True,
)
_DEEPSEEK = _model(
  "DeepseekV3ForCausalLM",
  "deepseek_v3",
  num_key_value_heads=8,
  q_lora_rank=128,
  kv_lora_rank=128,
  qk_nope_head_dim=64,
  qk_rope_head_dim=64,
  v_head_dim=64,
  head_dim=64,
  n_routed_experts=8,
  n_shared_experts=1,
  num_experts_per_tok=2,
  moe_intermediate_size=256,
  first_k_dense_replace=1,
  n_group=2,
  topk_group=1,
  topk_method="noaux_tc",
  scoring_func="sigmoid",
  routed_scaling_factor=1.0,
  norm_topk_prob=True,
  moe_layer_freq=1,
  num_nextn_predict_layers=0,
)
_GPT_OSS = _model(
  "GptOssForCausalLM",
  "gpt_oss",
  attention_bias=True,
  num_local_experts=8,
  num_experts_per_tok=2,
  intermediate_size=384,
  sliding_window=32,
  layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
  swiglu_limit=7.0,
)
_NEMOTRON = _model(
  "NemotronHForCausalLM",
  "nemotron_h",
  num_hidden_layers=6,
  hybrid_override_pattern="ME-E*E",
  mamba_num_heads=8,
  mamba_head_dim=64,
  n_groups=4,
  ssm_state_size=32,
  conv_kernel=4,
  use_conv_bias=True,
  mamba_hidden_act="silu",
  mlp_hidden_act="relu2",
  mlp_bias=False,
  use_bias=False,
  attention_bias=False,
  layer_norm_epsilon=1e-5,
  n_routed_experts=8,
  n_shared_experts=1,
  num_experts_per_tok=2,
  moe_intermediate_size=256,
  moe_shared_expert_intermediate_size=512,
  n_group=1,
  topk_group=1,
  norm_topk_prob=True,
  routed_scaling_factor=1.0,
  chunk_size=64,
)

MODELS = {
  "llama": _model("LlamaForCausalLM", "llama"),
  "llama-bias": _model("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True),
  "mistral": _model("MistralForCausalLM", "mistral", sliding_window=None),
  "qwen2": _model("Qwen2ForCausalLM", "qwen2", head_dim=32, tie_word_embeddings=True),
  "qwen3": _model("Qwen3ForCausalLM", "qwen3"),
  "qwen3-bias": _model("Qwen3ForCausalLM", "qwen3", attention_bias=True),
  "qwen3-moe": _QWEN3_MOE,
  # Shards of these experts cut FP8 blocks.
  "qwen3-moe-384": _QWEN3_MOE | {"moe_intermediate_size": 384},
  "qwen3-moe-bias": _QWEN3_MOE | {"attention_bias": True},
  "qwen3-next": _model(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    **_EXPERTS,
    shared_expert_intermediate_size=256,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    norm_topk_prob=True,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
    partial_rotary_factor=0.5,
    layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
    num_hidden_layers=8,
  ),
  "mixtral": _model(
    "MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2
  ),
  "deepseek": _DEEPSEEK,
  "deepseek-bias": _DEEPSEEK | {"attention_bias": True},
  "deepseek-noq": _DEEPSEEK | {"q_lora_rank": None},
  "glm": _model(
    "Glm4MoeForCausalLM",
    "glm4_moe",
    attention_bias=True,
    use_qk_norm=True,
    partial_rotary_factor=0.5,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=256,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
    num_nextn_predict_layers=0,
  ),
  "gpt-oss": _GPT_OSS,
  # 9 blocks of 32.
  "gpt-oss-9": _GPT_OSS | {"intermediate_size": 288},
  "nemotron": _NEMOTRON,
  "gemma": _model(
    "Gemma3ForCausalLM",
    "gemma3_text",
    tie_word_embeddings=True,
    hidden_activation="gelu_pytorch_tanh",
    query_pre_attn_scalar=64,
    sliding_window=32,
    layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
  ),
}
