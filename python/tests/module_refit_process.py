# SPDX-License-Identifier: Apache-2.0
"""Refits of whole modules, on one rank of the processes of xferdtensor_process."""

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from xferdtensor_process import S0, S1, R, mesh_of, numbers

import reshard
from reshard import dtensor


def _every_kind_of_tensor():
  """Full tensors with the names of a checkpoint, whose experts are stacked: one or more of each kind."""
  bf16, f32, fp8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
  layer = "model.layers.0."
  sizes = {
    "model.embed_tokens.weight": ((12, 8), bf16),
    layer + "input_layernorm.weight": ((8,), bf16),
    layer + "self_attn.q_proj.weight": ((16, 8), bf16),
    layer + "self_attn.q_proj.bias": ((16,), bf16),
    layer + "self_attn.k_proj.weight": ((4, 8), bf16),
    layer + "self_attn.o_proj.weight": ((8, 16), fp8),
    layer + "self_attn.o_proj.weight_scale_inv": ((2, 4), f32),
    layer + "self_attn.attn.q_scale": ((1,), f32),
    layer + "self_attn.k_scale": ((), f32),
    layer + "mlp.gate.weight": ((4, 8), f32),
    layer + "mlp.gate.e_score_correction_bias": ((4,), f32),
    layer + "mlp.experts.gate_proj.weight": ((4, 6, 8), bf16),
    layer + "mlp.experts.up_proj.weight": ((4, 6, 8), bf16),
    layer + "mlp.experts.down_proj.weight": ((4, 8, 6), bf16),
    layer + "mlp.shared_expert.down_proj.weight": ((8, 6), bf16),
    layer + "mixer.A_log": ((4,), f32),
    layer + "mixer.conv1d.weight": ((6, 1, 4), bf16),
    "mtp.layers.0.eh_proj.weight": ((8, 16), bf16),
    "model.norm.weight": ((8,), bf16),
    "lm_head.weight": ((12, 8), bf16),
  }
  return {n: numbers(shape, seed=i).to(dtype) for i, (n, (shape, dtype)) in enumerate(sizes.items())}


# Names, and what of the dense mesh [replicas, tp] and of the experts' mesh cuts them.
DENSE = [
  ("*_proj.bias", [R, S0]), ("*.q_proj.weight", [R, S0]), ("*.k_proj.weight", [R, S0]),
  ("*.o_proj.weight", [R, S1]), ("*.o_proj.weight_scale_inv", [R, S1]), ("*.shared_expert.down_proj.weight", [R, S1]),
  ("*embed_tokens.weight", [R, S0]), ("lm_head.weight", [R, S0]),
]  # fmt: skip
EP = [("*.experts.*", [S0, R])]
EXPERTS_TP = [("*.experts.down_proj.weight", [R, Shard(2)]), ("*.experts.*", [R, S1])]


def _placing(dense, experts, expert_rules):
  rules = [(name, experts, placements) for name, placements in expert_rules]
  return [*rules, *((name, dense, placements) for name, placements in DENSE), ("*", None, None)]


def _cut(full, rules, rank):
  """This rank's shards by torch's own chunks, written for even cuts of one mesh dimension."""
  from reshard._names import matches

  shards = {}
  for name, tensor in full.items():
    _, grid, placements = next(rule for rule in rules if matches(rule[0])(name))
    for size, at, place in zip(*_at(grid, rank), placements or [], strict=False):
      if isinstance(place, Shard):
        bits = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
        tensor = bits.chunk(size, place.dim)[at].contiguous().view(tensor.dtype)
    shards[name] = tensor.clone()
  return shards


def _at(grid, rank):
  if grid is None:
    return (), ()
  ranks = torch.tensor(grid)
  return tuple(ranks.shape), (ranks == rank).nonzero()[0].tolist()


def every_kind(overlap):
  """Expert and dense meshes of their own on both sides, and every kind of tensor; three steps."""
  me = dist.get_rank()
  trainers, engines = ([0, 1, 2, 3], [2, 3]) if overlap else ([0, 1], [2, 3])
  trainer = [[0, 2], [1, 3]] if overlap else [[0, 1]]  # experts in another order than tensor parallelism
  mine = _placing(torch.tensor(trainers).view(-1, 2).tolist(), torch.tensor(trainer).T.tolist(), EP)
  theirs = _placing([engines], [engines], EXPERTS_TP)
  full = _every_kind_of_tensor()
  source = _cut(full, mine, me) if me in trainers else None
  wanted = _cut(full, theirs, me) if me in engines else None
  target = None if wanted is None else {n: torch.zeros_like(t) for n, t in wanted.items()}
  with dtensor.Refit(source, target, source_place=mine, target_place=theirs, verify="always") as refit:
    for step in range(3):
      for name, tensor in (source or {}).items():
        if tensor.dtype in (torch.bfloat16, torch.float32):
          # The experts are stacked anew in each step; other tensors change in place.
          source[name] = tensor * 2 if "experts" in name else tensor.mul_(2)
      refit()
      for name, tensor in (target or {}).items():
        same = wanted[name] * 2 ** (step + 1) if tensor.itemsize > 1 else wanted[name]
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), same.reshape(-1).view(torch.uint8)), name
  return len(full)


class Tied(torch.nn.Module):
  def __init__(self, tied):
    super().__init__()
    self.embed = torch.nn.Embedding(6, 4)
    self.lm_head = torch.nn.Linear(4, 6, bias=False)
    if tied:
      self.lm_head.weight = self.embed.weight
    self.register_buffer("step", torch.zeros(()))
    self.register_buffer("cache", torch.zeros(3), persistent=False)


def tied():
  """A tied target takes either name, and an untied one the tensor under both; buffers that are not persistent stay."""
  me = dist.get_rank()
  for both, into in ((False, True), (True, True), (True, False)):
    for of in (lambda module: module, torch.nn.Module.state_dict):
      source, target = Tied(both), Tied(into)
      source.step.fill_(7)
      source.cache.fill_(1)
      with torch.no_grad():
        source.embed.weight.copy_(torch.arange(24.0).view(6, 4))
        target.embed.weight.zero_()
        target.lm_head.weight.zero_()
      ignore = () if both else "lm_head.weight"  # else the tied target would get two tensors
      with dtensor.Refit(of(source) if me == 0 else None, of(target) if me else None, ignore=ignore) as refit:
        refit()
      if me:
        assert torch.equal(target.embed.weight, source.embed.weight) and target.step == 7
        assert torch.equal(target.lm_head.weight, source.embed.weight)
        assert torch.equal(target.cache, torch.zeros(3))
  return True


def tied_shards():
  """A tied module of FSDP2 whose last ranks have no row of the tied tensor: nothing there says that it is one."""
  mesh = init_device_mesh("cpu", (dist.get_world_size(),))
  module = Tied(True)
  module.register_buffer("step", None)
  torch.distributed.fsdp.fully_shard(module, mesh=mesh)
  state = module.state_dict()
  rows = torch.arange(24.0).view(6, 4)
  with torch.no_grad():
    state["embed.weight"].copy_(torch.distributed.tensor.distribute_tensor(rows, mesh, [torch.distributed.tensor.Shard(0)]))
  model = reshard.Model.from_tensors("whole", {"embed.weight": ([6, 4], "float32")})
  assert {t.name for t in reshard.of_dtensors(state, model).local(dist.get_rank())} == set(state)
  for target in (Tied(False), Tied(True)):
    with dtensor.Refit(state, target, ignore="step") as refit:
      refit()
    assert torch.equal(target.embed.weight, rows) and torch.equal(target.lm_head.weight, rows)
    with torch.no_grad():
      state["embed.weight"].zero_()
    with dtensor.Refit(target, state, ignore="step" if target.lm_head.weight is target.embed.weight else ["step", "lm_head.*"]) as refit:
      refit()
    assert torch.equal(state["lm_head.weight"].full_tensor(), rows)
  return True


def fsdp_modules():
  """A module of FSDP2 over TP on all ranks into a tensor-parallel one on two, and whole ones on the others."""
  import dtensor_process
  from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

  source = dtensor_process.Block()
  mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
  dtensor_process._parallel(source, mesh["tp"])
  dtensor_process._fully(source, mesh["dp"])
  me = dist.get_rank()
  target = dtensor_process.Block()
  if me in (0, 2):
    for layer in target.layers:
      parallelize_module(layer, mesh_of([0, 2]), {"up": ColwiseParallel(), "down": RowwiseParallel()})
  with torch.no_grad():
    for parameter in target.parameters():
      (parameter.to_local() if isinstance(parameter, DTensor) else parameter).fill_(-1)
  expected = {n: (t.full_tensor() if isinstance(t, DTensor) else t) for n, t in source.named_parameters()}
  with dtensor.Refit(source, target, verify="always") as refit:
    refit()
  for name, tensor in target.named_parameters():
    assert torch.equal(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor, expected[name]), name
  return len(expected)


def engine(kind):
  """A model of transformers with FSDP2 and TP into the layout of an engine, and a KV scale that the model lacks."""
  import dtensor_process

  shards, model = dtensor_process.transformers_shards(kind)
  target = reshard.layout("vllm:tp=4", model)
  served, expected = dtensor_process.expected_of(shards, model, target)
  scale = "model.layers.0.self_attn.k_scale"
  source = shards | {scale: torch.tensor([0.5])}
  into = served | {scale: torch.tensor([1.0])}
  with dtensor.Refit(source, into, model=model, target_layout=target, verify="always") as refit:
    assert len(refit()) == 2
  assert into[scale] == 0.5
  for name, value in expected.items():
    assert torch.equal(dtensor_process._bits(value), dtensor_process._bits(served[name])), name
  return len(served)


def unlike():
  """What Refit raises on this rank, case by case."""
  me = dist.get_rank()
  four = {"a": torch.zeros(8, 2), "b": torch.zeros(3)}
  model = reshard.Model.from_tensors("m", {"a": ((8, 2), "float32"), "b": ((3,), "float32")})
  half = {"a": torch.zeros(2, 2)}
  rules = [("a", [0, 1, 2, 3], [S0])]
  cases = {
    "only source": lambda: dtensor.Refit(four | {"x.scale": torch.zeros(1)}, four),
    "only target": lambda: dtensor.Refit(four, four | {"x.scale": torch.zeros(1)}),
    "shape": lambda: dtensor.Refit(four, {"a": torch.zeros(8, 2), "b": torch.zeros(4)}),
    "local": lambda: dtensor.Refit(half, {"a": torch.zeros(8, 2)}),
    "unplaced": lambda: dtensor.Refit(half | {"b": torch.zeros(3)}, four, source_place=rules),
    "fp8": lambda: dtensor.Refit(four, {"a": torch.zeros(8, 2, dtype=torch.float8_e4m3fn), "b": torch.zeros(3)}),
    "layout": lambda: dtensor.Refit(four, four, target_layout=reshard.layout("hf", model)),
    "no module": lambda: dtensor.Refit(four if me != 2 else 3, four),
    "of the model": lambda: dtensor.Refit(four, {"a": torch.zeros(8, 2)}, model=model),
    "nothing": lambda: dtensor.Refit(None, None),
  }  # fmt: skip
  said = {}
  for name, call in cases.items():
    try:
      call()
      said[name] = None
    except reshard.Error as error:
      said[name] = f"{type(error).__name__}: {error}"
  target = {"a": torch.ones(8, 2), "c": torch.ones(1)}
  with dtensor.Refit(four if me == 0 else None, target if me == 3 else None, ignore=["b", "c"]) as refit:
    refit()
  assert torch.equal(target["a"], torch.full((8, 2), 0.0 if me == 3 else 1.0)) and target["c"] == 1
  return said
