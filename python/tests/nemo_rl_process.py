# SPDX-License-Identifier: Apache-2.0
"""One worker of NeMo-RL: of the policy, with an FSDP2 model over gloo, or of vLLM."""

import os
import types

import frameworks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

frameworks.use("nemo_rl.utils.checkpoint_engines.base")

from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine, create_checkpoint_engine  # noqa: E402

BACKEND = "reshard.nemo_rl:CheckpointEngine"


class Model(nn.Module):
  def __init__(self):
    super().__init__()
    torch.manual_seed(0)
    self.embed = nn.Embedding(53, 12)
    self.layers = nn.ModuleList(nn.Linear(12, 31 + i) for i in range(3))
    self.norm = nn.LayerNorm(12)
    self.register_buffer("k_scale", torch.tensor(0.25))

  def all(self):
    """Whole tensors, gathered as they are asked for, in bfloat16 as NeMo-RL's DTensor policies send."""
    for name, tensor in self.state_dict().items():
      whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
      yield name, whole.to(torch.bfloat16)


def make(role, rank, store, bucket, options):
  torch.set_num_threads(1)
  state = types.SimpleNamespace(role=role, rank=rank, model=Model())
  if role == "policy":
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for layer in state.model.layers:
      fully_shard(layer, mesh=mesh)
    fully_shard(state.model, mesh=mesh)
  else:
    state.model.to(torch.bfloat16)
  state.engine = create_checkpoint_engine(BACKEND, bucket_size_bytes=bucket, engine_kwargs=options)
  assert isinstance(state.engine, CheckpointEngine) and state.engine.get_target_weight_layout() is None
  return state


def end(state):
  state.engine.finalize()
  if dist.is_initialized():
    dist.destroy_process_group()


def execute(state, method, kwargs):
  return getattr(state.engine, method)(**kwargs)


def prepare(state):
  """As NeMo-RL's workers answer: with their rank."""
  return {**state.engine.prepare(), "rank": state.rank}


def train(state, seed):
  with torch.no_grad():
    for i, (_, tensor) in enumerate(sorted(state.model.state_dict().items())):
      local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
      generator = torch.Generator().manual_seed(1000 * seed + 10 * i + isinstance(tensor, DTensor) * state.rank)
      local.copy_(torch.randn(local.shape, generator=generator))
  return packed(state.model.all())


def packed(tensors):
  return {n: (tuple(t.shape), bytes(t.detach().contiguous().view(-1).view(torch.uint8).numpy())) for n, t in tensors}


async def send(state, what="whole"):
  weights = state.model.all()
  if what == "die" and state.rank == 1:
    weights = dying(weights)
  if what == "other" and state.rank == 1:
    weights = ((n, t[:1] if n == "norm.weight" else t) for n, t in weights)
  await state.engine.send_weights(weights)


def dying(weights):
  for i, item in enumerate(weights):
    if i == 7:
      os._exit(9)
    yield item


async def receive(state):
  """Loads each batch at once, as NeMo-RL's vLLM workers do; what the model holds then."""
  own = state.model.state_dict()
  async for batch in state.engine.receive_weight_batches():
    assert isinstance(batch, list)
    for name, tensor in batch:
      assert own[name].dtype == tensor.dtype
      own[name].copy_(tensor)
  return packed(own.items())


def holds(state):
  return packed(state.model.state_dict().items())


def option(state, name, value):
  """Of the next group."""
  setattr(state.engine, name, value)
