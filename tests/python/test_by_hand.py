# SPDX-License-Identifier: Apache-2.0
"""The code by hand in examples/by_hand, which the README shows, gives the bytes that reshard gives."""

import pathlib
import sys

import program
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "by_hand"))
import qkv  # noqa: E402


def tensors_of_ranks(folder, name):
  """The local tensor `name` of each rank of a checkpoint in ranks."""
  ranks = program.RankFolder(folder)
  return [load_file(ranks.folder / ranks.files[rank])[name] for rank in sorted(ranks.files)]


def test_qkv_by_hand_is_what_reshard_writes(tmp_path, checkpoint):
  folder, model = checkpoint("qwen3")
  trainer = program.convert(folder, tmp_path / "trainer", "hf", "megatron:tp=2")
  engine = program.convert(folder, tmp_path / "engine", "hf", "vllm:tp=2")
  shards = tensors_of_ranks(trainer, "decoder.layers.0.self_attention.linear_qkv.weight")
  by_hand = qkv.refit_qkv(shards, model.num_heads, model.num_kv_heads, model.head_dim, engine_tp=2)
  wanted = tensors_of_ranks(engine, "model.layers.0.self_attn.qkv_proj.weight")
  assert all(torch.equal(a, b) for a, b in zip(by_hand, wanted, strict=True))
