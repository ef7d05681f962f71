# SPDX-License-Identifier: Apache-2.0
"""A small model of transformers, for processes of tests."""

import torch


def small_model(seed=0):
  """A Llama of transformers with uneven sizes, tied to nothing."""
  from transformers import LlamaConfig, LlamaForCausalLM

  torch.manual_seed(seed)
  config = LlamaConfig(
    vocab_size=101, hidden_size=24, intermediate_size=42, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=6, tie_word_embeddings=False,
  )  # fmt: skip
  return LlamaForCausalLM(config).to(torch.bfloat16)
