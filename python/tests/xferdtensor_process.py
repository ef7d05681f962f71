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


def mesh_of(grid):
  """A DeviceMesh, made once: by all ranks, in the same order."""
  key = repr(grid)
  if key not in _meshes:
    _meshes[key] = DeviceMesh("cpu", torch.tensor(grid))
  return _meshes[key]


def _depth(grid):
  return torch.tensor(grid).ndim


def pairs(count=110):
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


def numbers(shape, dtype=torch.float32, seed=0):
  return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _distributed(full, grid, placements):
  return distribute_tensor(full.clone(), mesh_of(grid), placements, src_data_rank=None)


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
  """As NeMo-RL's refit passes tensors: a global shape and a shard."""

  shape: torch.Size
  _local_tensor: torch.Tensor


@dataclasses.dataclass
class Info:
  """A grid of ranks without process groups."""

  mesh: torch.Tensor


def _forms(form, tensor, grid):
  """A DTensor and its mesh as one of the forms that a caller may have."""
  if form == "dtensor":
    return (tensor if _holds(grid) else None), mesh_of(grid)
  local = tensor.to_local() if _holds(grid) else None
  if form == "reference":
    return (None if local is None else Reference(tensor.shape, local)), Info(torch.tensor(grid))
  return local, grid


FORMS = ["dtensor", "local", "reference"]


def all_pairs():
  """Moves tensors between all pairs; returns how many were compared, and how many relations of ranks there are."""
  relations = set()
  for i, (src_grid, src_placements, dst_grid, dst_placements, shape) in enumerate(pairs()):
    full = numbers(shape, seed=i)
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
  fulls = [numbers(p[4], seed=i) for i, p in enumerate(several)]
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

  src = _distributed(numbers((8, 6)), [0, 1, 2, 3], [S0])
  dst = _distributed(torch.zeros(8, 6), [[0, 1], [2, 3]], [S1, S0])
  found = []
  for fresh in (False, True):
    before = files = None
    for call in range(calls + 1):
      if fresh:
        src = _distributed(numbers((8, 6), seed=call), [0, 1, 2, 3], [S0])
        dst = _distributed(torch.zeros(8, 6), [[0, 1], [2, 3]], [S1, S0])
      else:
        src.to_local().fill_(call)
      xferdtensor(src, None, None, dst, None, None, None)
      if call == 0:
        before, files = dtensor.statistics(), len(os.listdir("/proc/self/fd"))
      full = numbers((8, 6), seed=call) if fresh else torch.full((8, 6), float(call))
      assert torch.equal(dst.to_local(), _distributed(full, [[0, 1], [2, 3]], [S1, S0]).to_local())
    after = dtensor.statistics()
    files = len(os.listdir("/proc/self/fd")) - files
    found.append((after.made - before.made, after.reused - before.reused, after.kept - before.kept, files))
  return found


def memory():
  """Shards that no session can use as they are: columns of a matrix, one memory for both sides, expanded."""
  me = dist.get_rank()
  wide = torch.full((4, 6), -1.0)
  full = numbers((4, 8))
  columns = wide[:, 2:4]
  for _ in range(2):
    xferdtensor(full.clone() if me == 0 else None, [0], [R], columns, [0, 1, 2, 3], [S1], None)
    assert torch.equal(columns, full[:, 2 * me : 2 * me + 2])
    assert (wide[:, :2] == -1).all() and (wide[:, 4:] == -1).all()
    full = full + 1
  matrix = numbers((8, 8))
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
  full = numbers((6, 4))
  me = dist.get_rank()
  for to in (torch.bfloat16, torch.float16, torch.float32):
    dst = torch.zeros((6, 4), dtype=to)
    xferdtensor(full if me == 2 else None, [2], [R], dst, [0, 1, 2, 3], [R], None, verify="always")
    assert torch.equal(dst, full.to(to)), to
  for kept in (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8, torch.int64, torch.bool):
    bits = numbers((8, 4)).mul(100).to(torch.uint8) % 2
    src = bits.view(kept) if kept.itemsize == 1 else bits.to(kept)
    dst = torch.zeros_like(src)
    mine = src[4:].contiguous() if me == 1 else src[:4] if me == 3 else None
    xferdtensor(mine, [3, 1], [S0], dst, [0, 1, 2, 3], [R], None)
    assert torch.equal(dst.view(torch.uint8), src.view(torch.uint8)), kept
  scalar = torch.tensor(2.5) if me == 0 else torch.tensor(0.0)
  xferdtensor(scalar if me == 0 else None, [0], [R], scalar if me > 0 else None, [1, 2, 3], [R], None)
  assert scalar == 2.5
  return True


def others():
  """The same move by the arguments of nccl.m2n and of torch's proposal; a group of part of the ranks; reshard's."""
  me = dist.get_rank()
  full = numbers((8, 6))
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
    xferdtensor(full if me == 3 else None, [3], [R], out, mesh_of([0, 1, 2, 3]), [S0], group)
    assert torch.equal(out, full[2 * me : 2 * me + 2])
  return True


def refused():
  """What is raised on this rank, case by case; then that the group still works."""
  me = dist.get_rank()
  t, four = torch.zeros(8, 2), [0, 1, 2, 3]
  row = torch.zeros(2, 2)
  partial = DTensor.from_local(torch.zeros(2, 2), mesh_of(four), [Partial()])
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

  import module_refit_process

  from reshard.live._groups import close_groups

  torch.set_num_threads(1)
  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
  for grid in GRIDS:
    mesh_of(grid)
  while (command := pipe.recv()) is not None:
    name, arguments = command
    try:
      call = globals().get(name) or getattr(module_refit_process, name)
      pipe.send((True, call(*arguments)))
    except Exception:
      pipe.send((False, traceback.format_exc()))
  dtensor.close_sessions()
  close_groups()
  dist.destroy_process_group()
