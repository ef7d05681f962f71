# SPDX-License-Identifier: Apache-2.0
"""Small models, their values, and what each rank of a layout holds, by torch's own slicing."""

import json
import tempfile
from pathlib import Path

import torch

import reshard

_COMMON = {
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 8,
  "intermediate_size": 96,
  "vocab_size": 128,
  "torch_dtype": "bfloat16",
  "tie_word_embeddings": False,
  "rms_norm_eps": 1e-6,
  "max_position_embeddings": 128,
  "hidden_act": "silu",
}
CONFIGS = {
  "dense": {**_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
  "moe": {
    **_COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
  },
}


def model(kind="dense"):
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "config.json")
    path.write_text(json.dumps(CONFIGS[kind]))
    return reshard.open_model(path)


def values(of, version=0):
  """{canonical name: tensor}, different for each version."""
  generator = torch.Generator().manual_seed(version)
  hf = reshard.layout("hf", of)
  return {t.name: torch.randn(t.shape, generator=generator).to(torch.bfloat16) for t in hf.local(0)}


def zeros(layout, rank, fill=0):
  """Memory for the local tensors of a rank, in plain layouts of bfloat16."""
  return {t.name: torch.full(t.shape, fill, dtype=torch.bfloat16) for t in layout.local(rank)}


def vllm_slices(canonical, tp, rank):
  """What vLLM's modules hold on one rank of tp, written as its loaders do."""
  out = {}

  def rows(name):
    return canonical[name].chunk(tp, 0)[rank]

  def columns(name):
    return canonical[name].chunk(tp, 1)[rank].contiguous()

  out["model.embed_tokens.weight"] = rows("model.embed_tokens.weight")
  out["lm_head.weight"] = rows("lm_head.weight")
  out["model.norm.weight"] = canonical["model.norm.weight"]
  for layer in range(2):
    at = f"model.layers.{layer}."
    for norm in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate"):
      if f"{at}{norm}.weight" in canonical:
        out[f"{at}{norm}.weight"] = canonical[f"{at}{norm}.weight"]
    out[f"{at}self_attn.qkv_proj.weight"] = torch.cat([rows(f"{at}self_attn.{x}_proj.weight") for x in "qkv"])
    out[f"{at}self_attn.o_proj.weight"] = columns(f"{at}self_attn.o_proj.weight")
    if f"{at}mlp.gate_proj.weight" in canonical:
      out[f"{at}mlp.gate_up_proj.weight"] = torch.cat([rows(f"{at}mlp.{x}_proj.weight") for x in ("gate", "up")])
      out[f"{at}mlp.down_proj.weight"] = columns(f"{at}mlp.down_proj.weight")
      continue
    experts = [f"{at}mlp.experts.{e}." for e in range(8)]
    at += "mlp.experts.routed_experts."
    out[f"{at}w13_weight"] = torch.stack(
      [torch.cat([rows(f"{e}{x}_proj.weight") for x in ("gate", "up")]) for e in experts]
    )
    out[f"{at}w2_weight"] = torch.stack([columns(f"{e}down_proj.weight") for e in experts])
  return out


def megatron_slices(canonical, tp, rank):
  """What Megatron-Core's modules of the dense model hold on one rank of tp."""

  def vocabulary(name):  # padded to a multiple of 128 * tp
    padding = -canonical[name].shape[0] % (128 * tp)
    return torch.nn.functional.pad(canonical[name], (0, 0, 0, padding)).chunk(tp, 0)[rank]

  out = {
    "embedding.word_embeddings.weight": vocabulary("model.embed_tokens.weight"),
    "output_layer.weight": vocabulary("lm_head.weight"),
    "decoder.final_layernorm.weight": canonical["model.norm.weight"],
  }
  for layer in range(2):
    at, to = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    # Groups of [two heads of q, one of k, one of v], each of 8 rows.
    q, k, v = (canonical[f"{at}self_attn.{x}_proj.weight"].unflatten(0, (4, -1)) for x in "qkv")
    out[f"{to}self_attention.linear_qkv.weight"] = torch.cat([q, k, v], 1).flatten(0, 1).chunk(tp, 0)[rank]
    out[f"{to}self_attention.linear_qkv.layer_norm_weight"] = canonical[f"{at}input_layernorm.weight"]
    out[f"{to}self_attention.linear_proj.weight"] = (
      canonical[f"{at}self_attn.o_proj.weight"].chunk(tp, 1)[rank].contiguous()
    )
    out[f"{to}mlp.linear_fc1.layer_norm_weight"] = canonical[f"{at}post_attention_layernorm.weight"]
    out[f"{to}mlp.linear_fc1.weight"] = torch.cat(
      [canonical[f"{at}mlp.{x}_proj.weight"].chunk(tp, 0)[rank] for x in ("gate", "up")]
    )
    out[f"{to}mlp.linear_fc2.weight"] = canonical[f"{at}mlp.down_proj.weight"].chunk(tp, 1)[rank].contiguous()
  return out


def assert_equal(got, want):
  assert got.keys() == want.keys()
  for name, tensor in want.items():
    assert torch.equal(got[name], tensor), name
