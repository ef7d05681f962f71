# SPDX-License-Identifier: Apache-2.0
"""A small Llama, and adapters of it in the forms that PEFT has."""

SIZES = {
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
}  # fmt: skip
LINEAR = ["q_proj", "v_proj", "down_proj"]
CONFIGS = {
  "plain": {"target_modules": LINEAR},
  "rslora": {"target_modules": LINEAR, "use_rslora": True},
  "patterns": {
    "target_modules": LINEAR,
    "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 3},
    "alpha_pattern": {"v_proj": 5, "layers.1.mlp.down_proj": 7, "^model.layers.0.mlp.down_proj": 2},
  },
  "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
  "a copy": {"target_modules": LINEAR, "modules_to_save": ["lm_head", "input_layernorm"]},
}
