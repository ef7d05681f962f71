# SPDX-License-Identifier: Apache-2.0
"""One worker of verl: an actor with an FSDP2 model over gloo, or a rollout with a whole one."""

import os
import types

import frameworks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch_models import small_model

REAL = frameworks.use("verl.checkpoint_engine.base")

import reshard.verl.sharded  # noqa: E402, F401 - and reshard.verl, both of which register
from verl.checkpoint_engine.base import CheckpointEngineRegistry  # noqa: E402

try:  # what drives an actor; it imports half of verl
  from verl.workers.engine_workers import ActorRolloutRefWorker
except ImportError:
  ActorRolloutRefWorker = None
try:
  from verl.workers.engine.spec import ShardSpec
except ImportError:  # the stand-in has none

  class ShardSpec(types.SimpleNamespace):
    """A stand-in for verl's description of a shard."""

    @classmethod
    def from_param(cls, param):
      if isinstance(param, DTensor):
        return cls(full_shape=tuple(param.shape), mesh=param.device_mesh, placements=tuple(param.placements))
      return cls(full_shape=tuple(param.shape), mesh=None)


class Engine:
  """A training engine as verl's FSDP engine gives its weights away."""

  def __init__(self, module, shards=True):
    self.module = module
    self.asked = []
    if not shards:
      self.get_per_tensor_param_shard = self._none

  def _none(self):
    raise NotImplementedError

  def get_per_tensor_param(self):
    self.asked.append("whole")
    params = self.module.state_dict()
    return ((n, p.full_tensor() if isinstance(p, DTensor) else p) for n, p in params.items()), None

  def get_per_tensor_param_shard(self):
    self.asked.append("shards")
    params = self.module.state_dict()
    specs = ((n, p, ShardSpec.from_param(p)) for n, p in params.items())
    return ((n, (p.to_local() if s.mesh is not None else p).reshape(-1), s) for n, p, s in specs), None


def make(role, rank, store, bucket, options):
  torch.set_num_threads(1)
  os.environ["RANK"] = str(rank)
  state = types.SimpleNamespace(role=role, rank=rank)
  if role == "actor":
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    module = small_model()
    for layer in module.model.layers:
      fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    module.register_buffer("scalar", torch.tensor(0.5))
    module.register_buffer("none", torch.empty(0, 3))
    module.register_buffer("ids", torch.arange(7))
    state.engine = Engine(module)
    options = {"is_master": rank == 0, **options}
  state.checkpoint = CheckpointEngineRegistry.new("reshard", bucket_size=bucket, **options)
  state.weights = {}
  return state


def end(state):
  state.checkpoint._close()
  if dist.is_initialized():
    dist.destroy_process_group()


def real(state):
  return REAL


def execute(state, method, kwargs):
  return getattr(state.checkpoint, method)(**kwargs)


def topology(state, actors, rollouts, metadata):
  return type(state.checkpoint).build_topology(actors, rollouts, metadata)


def train(state, seed):
  """A step: other values everywhere. Returns the whole tensors, as bytes."""
  with torch.no_grad():
    for i, (_, tensor) in enumerate(sorted(state.engine.module.state_dict().items())):
      local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
      if local.is_floating_point():
        generator = torch.Generator().manual_seed(1000 * seed + 10 * i + isinstance(tensor, DTensor) * state.rank)
        local.copy_(torch.randn(local.shape, generator=generator))
      else:
        local += seed
  return {n: packed(t) for n, t in state.engine.get_per_tensor_param()[0]}


def packed(tensor):
  flat = tensor.detach().contiguous().view(-1)
  return str(tensor.dtype), tuple(tensor.shape), bytes(flat.view(torch.uint8).numpy()) if len(flat) else b""


async def send(state, what, step):
  """Sends "whole" tensors or the "engine"; "fail" raises after some tensors; "die" kills the process."""
  state.engine.asked.clear()
  if ActorRolloutRefWorker and what in ("whole", "engine"):
    await send_by_worker(state, "delta_sharded" if what == "engine" else "reshard", step)
    return state.engine.asked
  weights = state.engine if what == "engine" else state.engine.get_per_tensor_param()[0]
  if what == "other" and state.rank == 1:
    weights = ((n + "x" if i == 3 else n, t) for i, (n, t) in enumerate(weights))
  if what == "fail":  # gathers first: in a gather, the other actor would wait for torch's own timeout
    weights = iter(list(weights))
  if what in ("fail", "die") and state.rank == 1:
    weights = broken(weights, what)
  await state.checkpoint.send_weights(weights, global_steps=step)
  return state.engine.asked


async def send_by_worker(state, backend, step):
  """verl's own actor worker decides whether it hands over whole tensors or its engine."""
  worker = ActorRolloutRefWorker.__new__(ActorRolloutRefWorker)
  worker.actor = types.SimpleNamespace(engine=state.engine)
  worker.checkpoint_engine = state.checkpoint
  checkpoint = types.SimpleNamespace(backend=backend)
  worker.config = types.SimpleNamespace(rollout=types.SimpleNamespace(checkpoint_engine=checkpoint))
  assert await ActorRolloutRefWorker.update_weights.__wrapped__(worker, global_steps=step, mode="auto") == {}


def broken(weights, what):
  for i, item in enumerate(weights):
    if i == 12:
      if what == "die":
        os._exit(9)
      raise KeyError("no such weight")
    yield item


async def receive(state, step):
  """Loads as the weights come, as verl's adapters do. Returns what there is then."""
  adapter = Adapter()
  state.count = 0
  try:
    if REAL:
      from verl.checkpoint_engine.base import CheckpointEngineWorker

      worker = CheckpointEngineWorker.__new__(CheckpointEngineWorker)
      worker.checkpoint_engine, worker.server_adapter = state.checkpoint, adapter
      await CheckpointEngineWorker.update_weights.__wrapped__(worker, global_steps=step)
    else:
      await adapter.update_weights(state.checkpoint.receive_weights(global_steps=step), step)
  finally:
    state.count = len(adapter.found)
  assert adapter.step == step
  last, state.last = getattr(state, "last", None), (adapter, adapter.packed())
  assert last is None or last[0].packed() == last[1], "an update has changed tensors of the one before"
  return state.last[1]


class Adapter:
  """Where a rollout's tensors go, in the place of verl's adapters for vLLM and SGLang."""

  def __init__(self):
    self.found, self.step = {}, None

  def packed(self):
    return {name: packed(tensor) for name, tensor in self.found.items()}

  async def update_weights(self, weights, global_steps, wire_format="named_tensors"):
    assert wire_format == "named_tensors"
    async for name, tensor in weights:
      self.found[name] = tensor
    self.step = global_steps


async def refuse(state, step):
  """A rollout that fails while it loads."""
  async for _ in state.checkpoint.receive_weights(global_steps=step):
    raise ValueError("the rollout cannot load this")


def seen(state):
  """How many tensors came, and whether the group works."""
  return state.count, state.checkpoint._stream is not None and state.checkpoint._stream.works


def set(state, attributes):  # noqa: A001
  """Other options, as of the next group."""
  vars(state.checkpoint).update(attributes)
  state.checkpoint._close()


def group(state):
  return state.checkpoint._group, state.checkpoint._stream.version
