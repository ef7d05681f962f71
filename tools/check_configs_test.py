#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: each example config has the published number of parameters, and can be cut as models are."""

import json
import pathlib
import unittest

CONFIGS = pathlib.Path(__file__).parent.parent / "examples" / "configs"
# As the models' cards state them, in billions.
PUBLISHED = {
  "llama-3.1-8b": 8.03,
  "llama-3.1-70b": 70.55,
  "llama-3.1-405b": 405.85,
  "mixtral-8x7b": 46.70,
  "qwen3-4b": 4.02,
  "qwen3-30b-a3b": 30.53,
  "qwen3-235b-a22b": 235.09,
  "demo-moe": 0.08,
}


def parameters(c):
  """The number of parameters of a decoder with this config."""
  hidden, head = c["hidden_size"], c["head_dim"]
  q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
  norms = 2 * hidden + (2 * head if c["model_type"].startswith("qwen3") else 0)
  experts = c.get("num_experts", c.get("num_local_experts", 0))
  wide = 3 * hidden * c.get("moe_intermediate_size", c["intermediate_size"])
  mlp = experts * (wide + hidden) if experts else wide
  layer = hidden * (q + 2 * kv) + q * hidden + norms + mlp
  embeddings = c["vocab_size"] * hidden * (1 if c["tie_word_embeddings"] else 2)
  return c["num_hidden_layers"] * layer + embeddings + hidden


class Configs(unittest.TestCase):
  def test_every_config_is_listed(self):
    self.assertEqual({f.stem for f in CONFIGS.glob("*.json")}, set(PUBLISHED))

  def test_sizes_are_the_published_ones(self):
    for name, billions in PUBLISHED.items():
      with self.subTest(name):
        config = json.loads((CONFIGS / f"{name}.json").read_text())
        self.assertEqual(round(parameters(config) / 1e9, 2), billions)
        self.assertEqual(config["num_attention_heads"] % config["num_key_value_heads"], 0)


if __name__ == "__main__":
  unittest.main()
