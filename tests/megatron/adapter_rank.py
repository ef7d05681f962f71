# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer whose modules have an adapter of Megatron-Bridge."""

import gloo_rank
import torch
import torch.distributed as dist
from adapters import LoRA, build_adapted
from gloo_rank import parallel
from test_modules import MODELS

import reshard
import reshard.lora


def _received(group, layout, tensors):
  """All tensors of a layout, whole, on rank 0; None elsewhere."""
  whole = reshard.layout("hf", layout.model)
  received = {t.name: torch.zeros(t.shape, dtype=getattr(torch, {"bf16": "bfloat16", "f32": "float32"}[t.dtype.name]))
              for t in whole.local(0)}  # fmt: skip
  mine = received if dist.get_rank() == 0 else None
  with reshard.Session(group, source=layout, source_tensors=tensors, target=whole, target_tensors=mine) as session:
    session.refit(1)
  return mine


def merged(folder, name, text):
  """On rank 0: weights and factors as the modules have them, and the merged weights; with the adapter's config."""
  with parallel(text):
    modules = build_adapted(MODELS[name], text, LoRA(dim=8, alpha=24), padded=256)
    held = reshard.lora.of_modules(modules, reshard.open_model(folder))
  with reshard.from_torch() as group:
    before = _received(group, held.layout, held.tensors())
    merge = reshard.lora.Merge(held.layout, held.tensors(), {"default": held.config}, rank=held.rank, group=group)
    merge.merge()
    after = _received(group, merge.layout, merge.tensors)
    merge.close()
  return before, after, held.config


def found_wrong(folder, name):
  """What is raised where only rank 0 has adapters."""
  with parallel("tp=2"):
    modules = build_adapted(MODELS[name], "tp=2", LoRA(dim=8, alpha=24)) if dist.get_rank() == 0 else [3]
    try:
      reshard.lora.of_modules(modules, reshard.open_model(folder))
    except reshard.Error as error:
      return f"{type(error).__name__}: {error}"


def serve(*arguments):
  gloo_rank.serve(*arguments, functions=globals())
