# SPDX-License-Identifier: Apache-2.0
"""A small dense model: its config, one of a class that is not known, and its tensors beside embedding, norm and head."""

CONFIG = {
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16",
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32, "tie_word_embeddings": False,
}  # fmt: skip
UNKNOWN = {"architectures": ["SomethingForCausalLM"], "model_type": "something"}
LAYER = "model.layers.0."
MATRICES = {
  "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
  "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64),
  "mlp.down_proj": (64, 96),
}  # fmt: skip
VECTORS = {
  "input_layernorm": 64, "post_attention_layernorm": 64, "self_attn.q_norm": 16,
  "self_attn.k_norm": 16,
}  # fmt: skip
