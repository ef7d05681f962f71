# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed over gloo: Megatron-Core's dist_checkpointing writes and loads modules."""

import json
import pathlib

import gloo_rank
import torch
import torch.distributed as dist
from building import build
from gloo_rank import parallel
from megatron.core import dist_checkpointing
from test_modules import MODELS
from world import parallel_state

import reshard
from reshard.tracing._types import torch_dtype

# The one call of the writer that needs a GPU, before it copies tensors from it.
torch.cuda.synchronize = lambda *_: None


def _tensors(module):
  """Its parameters, and the buffers that are of the model."""
  yield from module.named_parameters()
  yield from ((name, tensor) for name, tensor in module.named_buffers() if name.endswith("expert_bias"))


def _fill(modules):
  """Values that say where they belong; the same for what ranks share."""
  for module in modules:
    for name, tensor in _tensors(module):
      seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
      generator = torch.Generator().manual_seed(seed + 7919 * _part(tensor))
      with torch.no_grad():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))


def _part(tensor):
  """Another number on each rank if the parameter is cut or is an expert's, else 0."""
  cut = getattr(tensor, "tensor_model_parallel", False)
  cut = cut and parallel_state.get_tensor_model_parallel_world_size() > 1
  return dist.get_rank() + 1 if cut or not getattr(tensor, "allreduce", True) else 0


def write(name, text, folder, metadata):
  """Megatron writes the checkpoint; rank 0 also writes the model's tensors as live modules say them."""
  me = dist.get_rank()
  folder = pathlib.Path(folder)
  if me == 0:
    (folder / "dist").mkdir(parents=True)
    (folder / "dist" / "config.json").write_text(json.dumps(MODELS[name].hf))
  dist.barrier()
  model = reshard.open_model(str(folder / "dist" / "config.json"))
  with parallel(text):
    modules = build(MODELS[name], text, padded=256)
    _fill(modules)
    state = {}
    for module in modules:
      state.update(module.sharded_state_dict(metadata=metadata))
    dist_checkpointing.save({"model": state, "iteration": 3}, str(folder / "dist"), ("torch_dist", 1))
    values = _whole(modules, model)
  if me == 0:
    torch.save(values, folder / "whole.pt")
  dist.barrier()


def _whole(modules, model):
  """Rank 0: the model's tensors as live modules say them. Other ranks: None."""
  source = reshard.of_modules(modules, model)
  whole = reshard.layout("hf", source.model)
  values = None
  if dist.get_rank() == 0:
    values = {t.name: torch.zeros(t.shape, dtype=torch_dtype(t.dtype.name.upper())) for t in whole.local(0)}
  with reshard.from_torch() as group, reshard.Session(
    group,
    source=source,
    source_tensors=reshard.module_tensors(modules),
    target=whole,
    target_tensors=values,
    verify="always",
  ) as session:
    session.refit(1)
  return values


def load(name, text, checkpoint, whole, metadata):
  """Megatron loads a checkpoint into modules of zeros; rank 0 compares what they then hold with `whole`."""
  model = reshard.open_model(str(pathlib.Path(whole).parent / "dist" / "config.json"))
  with parallel(text):
    modules = build(MODELS[name], text, padded=256)
    state = {}
    for module in modules:
      for _, tensor in _tensors(module):
        tensor.detach().zero_()
      state.update(module.sharded_state_dict(metadata=metadata))
    loaded = dist_checkpointing.load({"model": state}, checkpoint)
    for module in modules:
      missing = module.load_state_dict(loaded["model"], strict=False).missing_keys
      assert all("_extra_state" in key for key in missing), missing
    values = _whole(modules, model)
  if dist.get_rank() == 0:
    for tensor, value in torch.load(whole).items():
      assert torch.equal(value, values[tensor]), tensor
  dist.barrier()


def serve(*arguments):
  gloo_rank.serve(*arguments, functions=globals())
