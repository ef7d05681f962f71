# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed over gloo: xferdtensor between real DTensors, and what else reshard.dtensor has."""

import dataclasses
import random

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import reshard
from reshard import dtensor
from reshard.dtensor import xferdtensor

GRIDS = [
  [0, 1, 2, 3], [3, 1, 0, 2], [0, 2], [3, 1], [2], [0, 1, 2],
  [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[3], [0]], [[1, 2]],
  [[[0, 1], [2, 3]]], [[[3], [1]], [[2], [0]]],
]  # fmt: skip
R, S0, S1, SL = Replicate(), Shard(0), Shard(1), Shard(-1)
PLACEMENTS = {
  1: [[S0], [S1], [R], [SL]],
  2: [[S0, S1], [S0, S0], [R, S0], [S1, R], [R, R], [_StridedShard(0, split_factor=2), S0], [SL, SL]],
  3: [[S0, S1, R], [S0, S0, S1], [R, SL, S0], [S0, S0, S0], [R, R, SL], [S0, R, S1]],
}
SHAPES = [(8, 6), (7, 5), (5, 3, 4), (9, 1), (16, 4), (2, 13), (3, 3, 3)]

_meshes = {}


def _mesh(grid):
  """A DeviceMesh, made once: by all ranks, in the same order."""
  key = repr(grid)
  if key not in _meshes:
    _meshes[key] = DeviceMesh("cpu", torch.tensor(grid))
  return _meshes[key]


def _depth(grid):
  return torch.tensor(grid).ndim


def pairs(count=130):
  """(grid, placements, grid, placements, shape): the same on all ranks."""
  choose = random.Random(7)
  found = []
  while len(found) < count:
    sides = []
    for _ in range(2):
      grid = choose.choice(GRIDS)
      sides += [grid, choose.choice(PLACEMENTS[_depth(grid)])]
    shape = choose.choice(SHAPES)
    strided = any(isinstance(p, _StridedShard) for side in (sides[1], sides[3]) for p in side)
    if strided and shape[0] % 8:  # uneven: by FSDP2's own modules, below
      continue
    found.append((*sides, shape))
  return found


def _numbers(shape, dtype=torch.float32, seed=0):
  return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _distributed(full, grid, placements):
  return distribute_tensor(full.clone(), _mesh(grid), placements, src_data_rank=None)


def _holds(grid):
  return dist.get_rank() in torch.tensor(grid).flatten().tolist()


def _ordered(grid):
  """True if ranks ascend along every dimension: torch's own collectives sort the ranks of a mesh's groups."""
  mesh = torch.tensor(grid)
  return all(bool((mesh.diff(dim=d) > 0).all()) for d in range(mesh.ndim))


def _check_full(tensor, grid, full, said):
  if _holds(grid) and _ordered(grid):
    assert torch.equal(tensor.full_tensor(), full), said


@dataclasses.dataclass
class Reference:
  """As the refit of the document passes tensors: a global shape and a shard."""

  shape: torch.Size
  _local_tensor: torch.Tensor


@dataclasses.dataclass
class Info:
  """A grid of ranks without process groups."""

  mesh: torch.Tensor


def _forms(form, tensor, grid):
  """A DTensor and its mesh as one of the forms that a caller may have."""
  if form == "dtensor":
    return (tensor if _holds(grid) else None), _mesh(grid)
  local = tensor.to_local() if _holds(grid) else None
  if form == "reference":
    return (None if local is None else Reference(tensor.shape, local)), Info(torch.tensor(grid))
  return local, grid


FORMS = ["dtensor", "local", "reference"]


def all_pairs():
  """Moves tensors between all pairs; returns how many were compared, and how many relations of ranks there are."""
  relations = set()
  for i, (src_grid, src_placements, dst_grid, dst_placements, shape) in enumerate(pairs()):
    full = _numbers(shape, seed=i)
    src = _distributed(full, src_grid, src_placements)
    dst = _distributed(torch.full_like(full, -1), dst_grid, dst_placements)
    expected = _distributed(full, dst_grid, dst_placements)
    said = f"pair {i}: {src_grid} {src_placements} -> {dst_grid} {dst_placements} {list(shape)}"
    _check_full(src, src_grid, full, said)
    src_given, src_mesh = _forms(FORMS[i % 3], src, src_grid)
    dst_given, dst_mesh = _forms(FORMS[i // 3 % 3], dst, dst_grid)
    xferdtensor(src_given, src_mesh, src_placements, dst_given, dst_mesh, dst_placements, None)
    if _holds(dst_grid):
      assert torch.equal(dst.to_local(), expected.to_local()), said
    _check_full(dst, dst_grid, full, said)
    a, b = (set(torch.tensor(grid).flatten().tolist()) for grid in (src_grid, dst_grid))
    relations.add("same" if a == b else "overlapping" if a & b else "disjoint")
  return len(pairs()), relations


def one_batch():
  """All pairs in one plan and session, by a block and by a list; then again, with other values."""
  made = dtensor.statistics().made
  several = pairs()
  fulls = [_numbers(p[4], seed=i) for i, p in enumerate(several)]
  sources = [_distributed(full, p[0], p[1]) for full, p in zip(fulls, several, strict=True)]
  targets = [_distributed(torch.zeros_like(full), p[2], p[3]) for full, p in zip(fulls, several, strict=True)]

  def arguments(p, src, dst):
    return (src if _holds(p[0]) else None, p[0], p[1], dst if _holds(p[2]) else None, p[2], p[3])

  for again in (1, 2, 3):
    if again < 3:
      with dtensor.batch():
        for p, src, dst in zip(several, sources, targets, strict=True):
          xferdtensor(*arguments(p, src, dst), None)
    else:
      dtensor.xferdtensors(
        [arguments(p, src, dst) for p, src, dst in zip(several, sources, targets, strict=True)]
      )
    for p, full, dst in zip(several, fulls, targets, strict=True):
      if _holds(p[2]):
        assert torch.equal(dst.to_local(), _distributed(full * again, p[2], p[3]).to_local()), (again, p)
    for full, src, p in zip(fulls, sources, several, strict=True):
      if _holds(p[0]):
        src.to_local().copy_(_distributed(full * (again + 1), p[0], p[1]).to_local())
  return dtensor.statistics().made - made


def reuse(calls=100):
  """(sessions made, calls that used one again, sessions kept, file descriptors) of `calls` calls with the same
  tensors, and with new ones each time."""
  import os

  src = _distributed(_numbers((8, 6)), [0, 1, 2, 3], [S0])
  dst = _distributed(torch.zeros(8, 6), [[0, 1], [2, 3]], [S1, S0])
  found = []
  for fresh in (False, True):
    before = files = None
    for call in range(calls + 1):
      if fresh:
        src = _distributed(_numbers((8, 6), seed=call), [0, 1, 2, 3], [S0])
        dst = _distributed(torch.zeros(8, 6), [[0, 1], [2, 3]], [S1, S0])
      else:
        src.to_local().fill_(call)
      xferdtensor(src, None, None, dst, None, None, None)
      if call == 0:
        before, files = dtensor.statistics(), len(os.listdir("/proc/self/fd"))
      full = _numbers((8, 6), seed=call) if fresh else torch.full((8, 6), float(call))
      assert torch.equal(dst.to_local(), _distributed(full, [[0, 1], [2, 3]], [S1, S0]).to_local())
    after = dtensor.statistics()
    files = len(os.listdir("/proc/self/fd")) - files
    found.append((after.made - before.made, after.reused - before.reused, after.kept - before.kept, files))
  return found


def memory():
  """Shards that no session can use as they are: columns of a matrix, one memory for both sides, expanded."""
  me = dist.get_rank()
  wide = torch.full((4, 6), -1.0)
  full = _numbers((4, 8))
  columns = wide[:, 2:4]
  for _ in range(2):
    xferdtensor(full.clone() if me == 0 else None, [0], [R], columns, [0, 1, 2, 3], [S1], None)
    assert torch.equal(columns, full[:, 2 * me : 2 * me + 2])
    assert torch.equal(wide[:, :2], torch.full((4, 2), -1.0)) and torch.equal(wide[:, 4:], torch.full((4, 2), -1.0))
    full = full + 1
  matrix = _numbers((8, 8))
  rows = matrix[2 * me : 2 * me + 2].clone()  # in place: rows to columns
  xferdtensor(rows, [0, 1, 2, 3], [S0], rows.view(8, 2), [0, 1, 2, 3], [S1], None)
  assert torch.equal(rows.view(8, 2), matrix[:, 2 * me : 2 * me + 2])
  turned = matrix.t()  # a source that is not contiguous
  out = torch.zeros(8, 8)
  xferdtensor(turned if me == 1 else None, [1], [R], out, [0, 1, 2, 3], [R], None)
  assert torch.equal(out, matrix.t())
  return True


def dtypes():
  """Values are converted; bits of other dtypes are kept."""
  full = _numbers((6, 4))
  me = dist.get_rank()
  for to in (torch.bfloat16, torch.float16, torch.float32):
    dst = torch.zeros((6, 4), dtype=to)
    xferdtensor(full if me == 2 else None, [2], [R], dst, [0, 1, 2, 3], [R], None, verify="always")
    assert torch.equal(dst, full.to(to)), to
  for kept in (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8, torch.int64, torch.bool):
    bits = _numbers((8, 4)).mul(100).to(torch.uint8) % 2
    src = bits.view(kept) if kept.itemsize == 1 else bits.to(kept)
    dst = torch.zeros_like(src)
    xferdtensor(src[4:].contiguous() if me == 1 else src[:4] if me == 3 else None, [3, 1], [S0], dst, [0, 1, 2, 3], [R], None)
    assert torch.equal(dst.view(torch.uint8), src.view(torch.uint8)), kept
  scalar = torch.tensor(2.5) if me == 0 else torch.tensor(0.0)
  xferdtensor(scalar if me == 0 else None, [0], [R], scalar if me > 0 else None, [1, 2, 3], [R], None)
  assert scalar == 2.5
  return True


def others():
  """The same move by the arguments of nccl.m2n and of torch's proposal; a group of part of the ranks; reshard's."""
  me = dist.get_rank()
  full = _numbers((8, 6))
  src, dst = [0, 1], [[2], [3]]
  mine = full[4 * me : 4 * me + 4].contiguous() if me < 2 else None
  theirs = torch.zeros(4, 6) if me >= 2 else None
  dtensor.xdtensor_reshard(
    mine, theirs, None, src_mesh=src, src_placements=[0], dst_mesh=dst, dst_placements=[0]
  )
  assert me < 2 or torch.equal(theirs, full[4 * (me - 2) : 4 * (me - 2) + 4])
  buf = torch.cat([full[2 * me : 2 * me + 2].reshape(-1), torch.zeros(7)])
  dtensor.mxn_cast(buf, (2, 6), [0, 1, 2, 3], [S0], (8, 2) if me else (), [1, 2, 3], [S1], dist.group.WORLD)
  if me:
    assert torch.equal(buf[:16].view(8, 2), full[:, 2 * me - 2 : 2 * me])
  else:
    assert torch.equal(buf[:12].view(2, 6), full[:2])
  part = dist.new_group([1, 3])
  if me in (1, 3):
    out = torch.zeros(8, 6) if me == 3 else None
    xferdtensor(full if me == 1 else None, [1], [R], out, [3], [R], part)
    assert me == 1 or torch.equal(out, full)
  with reshard.from_torch() as group:
    out = torch.zeros(2, 6)
    xferdtensor(full if me == 3 else None, [3], [R], out, _mesh([0, 1, 2, 3]), [S0], group)
    assert torch.equal(out, full[2 * me : 2 * me + 2])
  return True


def refused():
  """What is raised on this rank, case by case; then that the group still works."""
  me = dist.get_rank()
  t, four = torch.zeros(8, 2), [0, 1, 2, 3]
  row = torch.zeros(2, 2)
  partial = DTensor.from_local(torch.zeros(2, 2), _mesh(four), [Partial()])
  part = dist.new_group([0, 1, 2])
  cases = {
    "shape": lambda: xferdtensor(row, four, [S0], torch.zeros(7, 2), four, [R], None),
    "local": lambda: xferdtensor(Reference((8, 2), torch.zeros(3, 2)), four, [S0], t, four, [R], None),
    "placements": lambda: xferdtensor(row, four, [S0, R], t, four, [R], None),
    "dim": lambda: xferdtensor(row, four, [Shard(2)], t, four, [R], None),
    "outside": lambda: xferdtensor(row, [0, 1, 2, 7], [S0], t, four, [R], None),
    "twice": lambda: xferdtensor(row, [0, 1, 1, 2], [S0], t, four, [R], None),
    "ragged": lambda: xferdtensor(row, [[0, 1], [2]], [S0, R], t, four, [R], None),
    "missing": lambda: xferdtensor(None if me == 2 else row, four, [S0], t, four, [R], None),
    "extra": lambda: xferdtensor(t, [0], [R], t.clone(), four, [R], None),
    "partial": lambda: xferdtensor(partial, None, None, t, four, [R], None),
    "meshes differ": lambda: xferdtensor(row, four if me else [3, 1, 2, 0], [S0], t, four, [R], None),
    "one rank": lambda: xferdtensor("no tensor" if me == 3 else row, four, [S0], t, four, [R], None),
    "dtype": lambda: xferdtensor(row, four, [S0], t.to(torch.int32), four, [R], None),
    "dtypes": lambda: xferdtensor(row.double() if me == 1 else row, four, [S0], t, four, [R], None),
    "nobody": lambda: xferdtensor(None, None, None, t, four, [R], None),
    "count": lambda: dtensor.xferdtensors([(row, four, [S0], t, four, [R])] * (1 + (me == 1))),
    "expanded": lambda: xferdtensor(row, four, [S0], torch.zeros(1, 2).expand(8, 2), four, [R], None),
    "meta": lambda: xferdtensor(row.to("meta"), four, [S0], t, four, [R], None),
    "handle": lambda: dtensor.xdtensor_reshard(row, t, None, handle=1),
    "buffer": lambda: dtensor.mxn_cast(row, (2, 2), four, [S0], (8, 2), four, [R], None),
    "group of others": lambda: me < 3 and xferdtensor(row, four, [S0], t, [0, 1, 2], [R], part),
    "in a batch": lambda: _stopped(row, t, four),
  }  # fmt: skip
  said = {}
  for name, call in cases.items():
    try:
      call()
      said[name] = None
    except (reshard.Error, ZeroDivisionError) as error:
      said[name] = f"{type(error).__name__}: {error}"
  src = torch.full((2, 2), float(me))
  xferdtensor(src, four, [S0], t, four, [R], None)
  assert torch.equal(t[:, 0], torch.arange(4.0).repeat_interleave(2))
  return said


def _stopped(row, t, four):
  with dtensor.batch():
    xferdtensor(row, four, [S0], t, four, [R], None)
    if dist.get_rank() == 1:
      raise ZeroDivisionError("one's own")


def late():
  """Rank 0 does not come to a call of the others, which have a deadline; the next call makes a group anew."""
  four, out = [0, 1, 2, 3], torch.zeros(4)
  said = None
  if dist.get_rank():
    try:
      xferdtensor(None, [0], [R], out, four, [R], None, timeout=0.5)
    except reshard.Error as error:
      said = f"{type(error).__name__}: {error}"
  dist.barrier()
  xferdtensor(torch.ones(4) if dist.get_rank() == 0 else None, [0], [R], out, four, [R], None)
  assert torch.equal(out, torch.ones(4))
  return said


def modules(case):
  """A module of real FSDP2 / TP into one of another kind, parameter by parameter, as one batch."""
  import dtensor_process

  src = dtensor_process.CASES[case]()
  dst = dtensor_process.fsdp_columns() if "uneven" not in case else None
  if dst is None:
    mesh = init_device_mesh("cpu", (4,))
    dst = {n: distribute_tensor(torch.zeros(t.shape), mesh, [S0]) for n, t in src.items() if isinstance(t, DTensor)}
  moved = {n: t for n, t in src.items() if isinstance(t, DTensor) and n in dst}
  full = {n: t.full_tensor().detach() for n, t in moved.items()}
  with torch.no_grad():
    for n in moved:
      dst[n].to_local().zero_()
  with dtensor.batch(verify="always"):
    for n, t in moved.items():
      xferdtensor(t.detach().float() if t.dtype != torch.float32 else t, None, None, dst[n], None, None)
  for n in moved:
    assert torch.equal(dst[n].full_tensor(), full[n].float()), n
  return len(moved)


def _model_of_the_document():
  """Full tensors with the names of a checkpoint whose experts are grouped: each kind that the refit has."""
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
  return {n: _numbers(shape, seed=i).to(dtype) for i, (n, (shape, dtype)) in enumerate(sizes.items())}


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
  from reshard.live._names import matches

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


def document(overlap):
  """Expert and dense meshes of their own on both sides, and every kind of tensor; three steps."""
  me = dist.get_rank()
  trainers, engines = ([0, 1, 2, 3], [2, 3]) if overlap else ([0, 1], [2, 3])
  trainer = [[0, 2], [1, 3]] if overlap else [[0, 1]]  # experts in another order than tensor parallelism
  mine = _placing(torch.tensor(trainers).view(-1, 2).tolist(), torch.tensor(trainer).T.tolist(), EP)
  theirs = _placing([engines], [engines], EXPERTS_TP)
  full = _model_of_the_document()
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
        assert torch.equal(tensor.view(torch.uint8) if tensor.ndim else tensor, same.view(torch.uint8) if same.ndim else same), name
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
  """A tied target takes either name; buffers that are not persistent stay."""
  me = dist.get_rank()
  for both in (False, True):
    source, target = Tied(both), Tied(True)
    source.step.fill_(7)
    source.cache.fill_(1)
    with torch.no_grad():
      source.embed.weight.copy_(torch.arange(24.0).view(6, 4))
      source.lm_head.weight.copy_(source.embed.weight)
      target.embed.weight.zero_()
    with dtensor.Refit(source if me == 0 else None, target if me else None) as refit:
      refit()
    if me:
      assert torch.equal(target.lm_head.weight, source.embed.weight) and target.step == 7
      assert torch.equal(target.cache, torch.zeros(3))
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
      parallelize_module(layer, _mesh([0, 2]), {"up": ColwiseParallel(), "down": RowwiseParallel()})
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


def page(blocks):
  """Runs blocks of docs/dtensor.md, in order, as one program; returns what they leave."""
  names = {}
  for line, text in blocks:
    exec(compile("\n" * line + text, "docs/dtensor.md", "exec"), names)
  me = dist.get_rank()
  if me >= 2:
    assert torch.equal(names["served"], torch.tensor([0.0, 0, 0, 1, 1, 1]).view(6, 1).expand(6, 4))
    assert torch.equal(names["target"]["layers.0.norm.weight"].isnan(), torch.zeros(4, dtype=torch.bool))
    assert names["target"]["layers.0.experts.w2"].abs().sum() > 0
  assert torch.equal(names["columns"], torch.ones(8, 2))
  return sorted(names)


def serve(pipe, rank, size, store):
  """Runs what the pipe names, until it is None: [function, arguments] -> (True, result) or (False, text)."""
  import traceback

  from reshard.live._groups import close_groups

  torch.set_num_threads(1)
  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
  for grid in GRIDS:
    _mesh(grid)
  while (command := pipe.recv()) is not None:
    name, arguments = command
    try:
      pipe.send((True, globals()[name](*arguments)))
    except Exception:
      pipe.send((False, traceback.format_exc()))
  dtensor.close_sessions()
  close_groups()
  dist.destroy_process_group()
