# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed over gloo: makes real DTensors, and refits from and into them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import reshard


class Mlp(nn.Module):
  def __init__(self, width, inner, bias):
    super().__init__()
    self.up = nn.Linear(width, inner, bias=bias)
    self.down = nn.Linear(inner, width, bias=bias)
    self.register_buffer("scale", torch.tensor(3.0))


class Block(nn.Module):
  def __init__(self, width=8, inner=12, layers=2, bias=True):
    super().__init__()
    torch.manual_seed(0)
    self.embed = nn.Embedding(11, width)
    self.layers = nn.ModuleList(Mlp(width, inner, bias) for _ in range(layers))
    self.norm = nn.LayerNorm(width)


def _parallel(module, mesh):
  for layer in module.layers:
    parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _fully(module, mesh, **more):
  for layer in module.layers:
    fully_shard(layer, mesh=mesh, **more)
  fully_shard(module, mesh=mesh, **more)


def fsdp(**sizes):
  module = Block(**sizes)
  _fully(module, init_device_mesh("cpu", (4,)))
  return dict(module.named_parameters()) | dict(module.named_buffers())


def hsdp():
  module = Block().to(torch.bfloat16)
  _fully(module, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
  return dict(module.named_parameters())


def fsdp_columns():
  module = Block()
  fully_shard(module, mesh=init_device_mesh("cpu", (4,)), shard_placement_fn=lambda p: Shard(p.ndim - 1))
  return dict(module.named_parameters())


def fsdp_tp(**sizes):
  mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
  module = Block(**sizes)
  _parallel(module, mesh["tp"])
  _fully(module, mesh["dp"])
  return dict(module.named_parameters())


def tp_replicas():
  """Two replicas, each of which knows its own mesh only; norms are plain tensors."""
  mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
  module = Block()
  _parallel(module, mesh["tp"])
  return dict(module.named_parameters())


def stages():
  """Two pipeline stages of two ranks each: names differ between ranks."""
  mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
  module = Block()
  stage = dist.get_rank() // 2
  other = f"layers.{1 - stage}."
  _fully(module, mesh["dp"])
  here = {n: p for n, p in module.named_parameters() if not n.startswith(other)}
  return here


def two_meshes():
  """Experts on a mesh of their own, in another order of ranks."""
  dense = init_device_mesh("cpu", (4,))
  experts = dist.device_mesh.DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]))
  torch.manual_seed(0)
  return {
    "experts": distribute_tensor(torch.randn(6, 5, 4), experts, [Shard(0), Shard(1)]),
    "twice": distribute_tensor(torch.randn(9, 2), experts, [Shard(0), Shard(0)]),
    "half": distribute_tensor(torch.randn(3, 7), experts, [Replicate(), Shard(-1)]),
    "dense": distribute_tensor(torch.randn(5), dense, [Shard(0)]),
  }


CASES = {
  "fsdp": fsdp,
  "fsdp-uneven": lambda: fsdp(width=3, inner=7),
  "fsdp-columns": fsdp_columns,
  "hsdp": hsdp,
  "fsdp-tp": fsdp_tp,
  "fsdp-tp-uneven": lambda: fsdp_tp(width=6, inner=7),
  "tp-replicas": tp_replicas,
  "stages": stages,
  "two-meshes": two_meshes,
}


def _full(tensors):
  return {n: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for n, t in tensors.items()}


def _bits(tensor):
  return tensor.contiguous().reshape(-1).view(torch.uint8)


def _there_and_back(make):
  """A refit into whole tensors on rank 0, and one back into cleared DTensors."""
  tensors = make()
  layout = reshard.of_dtensors(tensors)
  try:
    alone = reshard.of_dtensors(tensors, gather=False)
  except reshard.InvalidArgumentError as error:
    assert "without gather=True" in str(error), error
    known = False
  else:
    known = not reshard.diff(layout, alone)
  whole_layout = reshard.layout("hf", layout.model)
  full = _full(tensors)
  everything = [None] * dist.get_world_size()
  dist.all_gather_object(everything, full)
  full = {name: value for of_rank in everything for name, value in of_rank.items()}
  me = dist.get_rank()
  whole = {t.name: torch.zeros_like(full[t.name]) for t in whole_layout.local(0)} if me == 0 else None
  with reshard.from_torch() as group:
    with reshard.Session(
      group, source=layout, source_tensors=tensors, target=whole_layout, target_tensors=whole, verify="always"
    ) as session:
      session.refit(1)
    if me == 0:
      assert sorted(whole) == sorted(full)
      for name, value in whole.items():
        assert torch.equal(_bits(value), _bits(full[name])), name
        value.add_(1)
    before = _full(tensors)
    with reshard.Session(
      group, source=whole_layout, source_tensors=whole, target=layout, target_tensors=tensors, verify="always"
    ) as session:
      session.refit(2)
  for name, value in _full(tensors).items():
    assert torch.equal(value, before[name] + 1), name
  return len(layout.ranks), known


def transformers_shards(kind):
  """The parameters of a model of transformers with FSDP2 over two of TP, and the model of its checkpoint."""
  import small_models
  import transformers

  model = small_models.model(kind)
  config = transformers.AutoConfig.for_model(**small_models.CONFIGS[kind])
  with torch.random.fork_rng():
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
  mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
  for layer in module.model.layers:
    parallelize_module(layer, mesh["tp"], {
      "self_attn.q_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
    })  # fmt: skip
    fully_shard(layer, mesh=mesh["dp"])
  fully_shard(module, mesh=mesh["dp"])
  return dict(module.named_parameters()), model


def expected_of(shards, model, target):
  """Cleared tensors of this rank of the target, and others with what full_tensor() says they shall have."""
  import small_models

  me = dist.get_rank()
  state = _full(shards)
  one = reshard.of_dtensors(state, model)
  # `one` has every rank of torch.distributed, all with everything.
  sources = reshard.RankBuffers(one, {rank: state for rank in one.ranks})
  expected = small_models.zeros(target, me)
  alone = {rank: expected if rank == me else small_models.zeros(target, rank) for rank in target.ranks}
  reshard.InProcessRefit(reshard.plan(one, target), sources, reshard.RankBuffers(target, alone)).run()
  return small_models.zeros(target, me), expected


def transformers_case(kind):
  shards, model = transformers_shards(kind)
  source, target = reshard.of_dtensors(shards, model), reshard.layout("vllm:tp=4", model)
  served, expected = expected_of(shards, model, target)
  with reshard.from_torch() as group, reshard.Session(
    group, source=source, source_tensors=shards, target=target, target_tensors=served, verify="always"
  ) as session:
    session.refit(1)
  for name, value in expected.items():
    assert torch.equal(_bits(value), _bits(served[name])), name
    assert value.abs().sum() > 0, name
  return len(served)


def refused():
  """What is raised on this rank, case by case."""
  mesh = init_device_mesh("cpu", (4,))
  ok = distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)])
  model = reshard.Model.from_tensors("m", {"layers.3.w": ((8, 2), "float32")})
  wrong = distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)])
  wrong._local_tensor = torch.zeros(3, 2)
  cases = {
    "partial": lambda: reshard.of_dtensors({"a.b": DTensor.from_local(torch.zeros(2), mesh, [Partial()])}),
    "unknown": lambda: reshard.of_dtensors({"w": ok}, model),
    "shape": lambda: reshard.of_dtensors(
      {"layers.3.w": distribute_tensor(torch.zeros(8, 3), mesh, [Shard(0)])}, model
    ),
    "local": lambda: reshard.of_dtensors({"w": wrong}),
    "no tensor": lambda: reshard.of_dtensors({"w": 3}),
    "of another rank": lambda: reshard.of_dtensors(
      {"w": wrong if dist.get_rank() == 2 else ok}
    ),
    "nothing": lambda: reshard.of_dtensors({}),
    "alone": lambda: reshard.of_dtensors({"b": torch.zeros(2)}, gather=False),
  }
  said = {}
  for name, call in cases.items():
    try:
      call()
      said[name] = None
    except reshard.Error as error:
      said[name] = f"{type(error).__name__}: {error}"
  return said


def names():
  """Local and canonical names with each way to say what a tensor is called."""
  mesh = init_device_mesh("cpu", (4,))
  model = reshard.Model.from_tensors("m", {"layers.3.w": ((8, 2), "float32")})
  w = distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)])
  ways = {
    "dict": ({"net.block3._orig_mod.w": w, "cache": w}, {"net.block#.*w": "layers.$1.w", "cache": None}),
    "function": ({"W": w}, lambda name: "layers.3." + name.lower()),
    "wrappers": ({"layers.3._orig_mod._checkpoint_wrapped_module.w": w}, None),
  }
  found = {}
  for way, (tensors, rename) in ways.items():
    layout = reshard.of_dtensors(tensors, model, names=rename)
    found[way] = [(t.name, t.fragments[0].tensor, list(t.fragments[0].box)) for t in layout.local(1)]
  return found


def two_sides():
  """Ranks 0 and 1 train, 2 and 3 serve; a reshard group joins them, each side is described in it."""
  me = dist.get_rank()
  trainer, engine = (dist.device_mesh.DeviceMesh("cpu", ranks) for ranks in ([0, 1], [2, 3]))
  torch.manual_seed(0)
  full = {"a": torch.randn(5, 4), "b": torch.randn(6)}
  mesh = trainer if me < 2 else engine
  dim = 0 if me < 2 else -1
  mine = {n: distribute_tensor(t if me < 2 else torch.zeros_like(t), mesh, [Shard(dim)]) for n, t in full.items()}
  with reshard.from_torch() as group:
    source = reshard.of_dtensors(mine if me < 2 else {}, group=group)
    target = reshard.of_dtensors(mine if me >= 2 else {}, source.model, group=group)
    with reshard.Session(
      group,
      source=source,
      target=target,
      source_tensors=mine if me < 2 else None,
      target_tensors=mine if me >= 2 else None,
      verify="always",
    ) as session:
      session.refit(1)
  for name, tensor in mine.items():
    assert torch.equal(tensor.full_tensor(), full[name]), name
  return source.ranks, target.ranks


def serve(pipe, rank, size, store):
  """Runs what the pipe names, until it is None: [function, arguments] -> (True, result) or (False, text)."""
  import traceback

  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
  while (command := pipe.recv()) is not None:
    name, arguments = command
    try:
      call = (lambda name: _there_and_back(CASES[name])) if name == "refit" else globals()[name]
      pipe.send((True, call(*arguments)))
    except Exception:
      pipe.send((False, traceback.format_exc()))
  dist.destroy_process_group()
