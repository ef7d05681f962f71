# SPDX-License-Identifier: Apache-2.0
"""Small random checkpoints that vLLM runs on a CPU. `python checkpoints.py FOLDER` writes them all.

float32, so that greedy generation has no ties, and heads of 64, the least that vLLM's CPU kernels
take.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

_COMMON = {
  "hidden_size": 128,
  "intermediate_size": 256,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 64,
  "vocab_size": 512,
  "max_position_embeddings": 512,
  "bos_token_id": 1,
  "eos_token_id": 2,
  "pad_token_id": 0,
  "dtype": "float32",
  "initializer_range": 0.2,
}
_EXPERTS = {"num_experts_per_tok": 2, "tie_word_embeddings": False}
CONFIGS = {
  "llama": lambda: transformers.LlamaConfig(**_COMMON, tie_word_embeddings=False),
  "qwen3": lambda: transformers.Qwen3Config(**_COMMON, tie_word_embeddings=True),
  "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
    **_COMMON, **_EXPERTS, num_experts=4, moe_intermediate_size=64, norm_topk_prob=True
  ),
  "mixtral": lambda: transformers.MixtralConfig(**_COMMON, **_EXPERTS, num_local_experts=4),
}


def write(model, seed, folder):
  """A checkpoint with random weights and a tokenizer of one word per token."""
  torch.manual_seed(seed)
  network = transformers.AutoModelForCausalLM.from_config(CONFIGS[model](), dtype=torch.float32)
  network.save_pretrained(folder)
  words = {f"t{i}": i for i in range(_COMMON["vocab_size"])}
  tokenizer = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
  }
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
  kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t2"}
  (folder / "tokenizer_config.json").write_text(json.dumps(kind))


if __name__ == "__main__":
  for model in CONFIGS:
    for name, seed in (("a", 1), ("b", 2)):
      write(model, seed, Path(sys.argv[1]) / f"{model}-{name}")
