#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: each example config has the published number of parameters, and can be cut as models are."""

import json
import pathlib
import unittest

CONFIGS = pathlib.Path(__file__).parent.parent / "examples" / "configs"
# In billions, without modules for multi-token prediction: as the models' cards and reports state
# them where they give that many digits, else what the published config.json comes to.
PUBLISHED = {
  "llama-3.1-8b": 8.03,
  "llama-3.1-70b": 70.55,
  "llama-3.1-405b": 405.85,
  "mixtral-8x7b": 46.70,
  "qwen3-4b": 4.02,
  "qwen3-30b-a3b": 30.53,
  "qwen3-235b-a22b": 235.09,
  "qwen3-next-80b-a3b": 79.67,
  "deepseek-v3": 671.03,
  "kimi-k2": 1026.41,
  "glm-4.5": 352.80,
  "glm-4.5-air": 106.85,
  "gpt-oss-120b": 116.83,
  "gpt-oss-20b": 20.91,
  "nemotron-3-nano-30b-a3b": 31.58,
  "nemotron-3-super-120b-a12b": 120.67,
  "gemma-3-1b": 1.00,
  "demo-moe": 0.08,
}


def attention(c):
  """Softmax attention: projections, biases, sinks, norms of heads."""
  hidden, head = c["hidden_size"], c["head_dim"]
  q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
  kind = c["model_type"]
  gated = 2 if kind == "qwen3_next" else 1
  total = hidden * (gated * q + 2 * kv) + q * hidden
  if c.get("attention_bias"):
    total += q + 2 * kv
  if kind == "gpt_oss":
    total += hidden + c["num_attention_heads"]
  if kind.startswith("qwen3") or kind == "gemma3_text" or c.get("use_qk_norm"):
    total += 2 * head
  return total


def latent_attention(c):
  hidden, heads, rope = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"]
  q_rank, kv_rank, value = c["q_lora_rank"], c["kv_lora_rank"], c["v_head_dim"]
  q = hidden * q_rank + q_rank + q_rank * heads * (c["qk_nope_head_dim"] + rope)
  kv = hidden * (kv_rank + rope) + kv_rank + kv_rank * heads * (c["qk_nope_head_dim"] + value)
  return q + kv + heads * value * hidden


def delta_net(c):
  keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
  heads = c["linear_num_value_heads"]
  values = heads * c["linear_value_head_dim"]
  projections = c["hidden_size"] * (2 * keys + 3 * values + 2 * heads)
  convolution = (2 * keys + values) * c["linear_conv_kernel_dim"]
  return projections + convolution + 2 * heads + c["linear_value_head_dim"]


def mamba(c):
  heads = c["mamba_num_heads"]
  inner = heads * c["mamba_head_dim"]
  packed = inner + 2 * c["n_groups"] * c["ssm_state_size"]
  projections = c["hidden_size"] * (inner + packed + heads) + inner * c["hidden_size"]
  return projections + packed * (c["conv_kernel"] + 1) + 3 * heads + inner


def experts(c):
  """Routed and shared experts and the router of a layer."""
  hidden, inner = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
  count = c.get("n_routed_experts") or c.get("num_experts") or c["num_local_experts"]
  router = hidden * count
  if c["model_type"] == "gpt_oss":
    return router + count + count * (3 * hidden * inner + 2 * inner + hidden)
  if c["model_type"] == "nemotron_h":
    width = c.get("moe_latent_size", hidden)
    latent = 0 if width == hidden else 2 * hidden * width
    shared = 2 * hidden * c["moe_shared_expert_intermediate_size"]
    return router + count + 2 * count * width * inner + latent + shared
  if "n_routed_experts" in c:
    return router + count + 3 * hidden * inner * (count + c["n_shared_experts"])
  shared = c.get("shared_expert_intermediate_size", 0)
  return router + 3 * hidden * (count * inner + shared) + (hidden if shared else 0)


def mixer(c, i):
  if "kv_lora_rank" in c:
    return latent_attention(c)
  if c["model_type"] == "qwen3_next" and (i + 1) % c["full_attention_interval"]:
    return delta_net(c)
  return attention(c)


def layer(c, i):
  hidden = c["hidden_size"]
  if c["model_type"] == "nemotron_h":
    kind = c["hybrid_override_pattern"][i]
    return hidden + {"M": mamba, "*": attention, "E": experts}[kind](c)
  sparse = any("experts" in key for key in c) and i >= c.get("first_k_dense_replace", 0)
  mlp = experts(c) if sparse else 3 * hidden * c["intermediate_size"]
  norms = 4 if c["model_type"] == "gemma3_text" else 2
  return mixer(c, i) + mlp + norms * hidden


def parameters(c):
  """The number of parameters of a decoder with this config."""
  tied = c.get("tie_word_embeddings", c["model_type"] == "gemma3_text")
  embeddings = c["vocab_size"] * c["hidden_size"] * (1 if tied else 2)
  return sum(layer(c, i) for i in range(c["num_hidden_layers"])) + embeddings + c["hidden_size"]


class Configs(unittest.TestCase):
  def test_every_config_is_listed(self):
    self.assertEqual({f.stem for f in CONFIGS.glob("*.json")}, set(PUBLISHED))

  def test_sizes_are_the_published_ones(self):
    for name, billions in PUBLISHED.items():
      with self.subTest(name):
        config = json.loads((CONFIGS / f"{name}.json").read_text())
        self.assertEqual(round(parameters(config) / 1e9, 2), billions)
        self.assertEqual(config["num_attention_heads"] % config["num_key_value_heads"], 0)

  def test_sizes_known_to_the_last_digit(self):
    for name, exact in {
      "gemma-3-1b": 999_885_952,
      "qwen3-next-80b-a3b": 79_674_391_296,
      # The card's bf16 weights less those for multi-token prediction, and 40 fp32 router biases.
      "nemotron-3-super-120b-a12b": 123_611_012_096 - 2_942_324_736 + 40 * 512,
    }.items():
      with self.subTest(name):
        self.assertEqual(parameters(json.loads((CONFIGS / f"{name}.json").read_text())), exact)


if __name__ == "__main__":
  unittest.main()
