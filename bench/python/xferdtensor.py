# SPDX-License-Identifier: Apache-2.0
"""Tensors from one mesh and placements to another: reshard.dtensor, gather-then-slice, NIXL and Mooncake.

    python bench/python/xferdtensor.py [TENSORS] [ROWS] [ROUNDS]

Four processes on this host, bf16 tensors of ROWS x ROWS. "same": rows over four ranks to columns over
two, replicated. "apart": rows over ranks 0 and 1 to columns over ranks 2 and 3. The ways take turns;
what arrived is compared byte by byte after each. All is prepared before: plans, sessions, registered
memory, descriptors. NIXL (UCX, shared memory) and Mooncake (TCP) read the pieces of reshard's plan, one
descriptor for each run of bytes, copy what stays on a rank, and end with a barrier, as gather-then-slice
does. One that cannot be used is left out, and said. NIXL needs nixl and nixl-cu12, Mooncake
mooncake-transfer-engine-non-cuda.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import reshard
import torch
import torch.distributed as dist
from reshard import dtensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

RANKS = 4
BATCH = 256  # descriptors of a call of Mooncake; with thousands its transfers fail
# Mesh and placements of the source, and of the target.
CASES: dict[str, tuple[Any, Any, Any, Any]] = {
  "same": ([0, 1, 2, 3], [Shard(0)], [[0, 1], [2, 3]], [Replicate(), Shard(1)]),
  "apart": ([0, 1], [Shard(0)], [2, 3], [Shard(1)]),
}
Tensors = dict[str, DTensor]
Way = Callable[[], None]
Run = tuple[int, int, int]  # address at the sender, address here, bytes


class Case:
  """Both sides of this rank, and the plan between them."""

  def __init__(self, name: str, tensors: int, rows: int) -> None:
    self.src_grid, self.src_placements, self.dst_grid, self.dst_placements = CASES[name]
    self.rank = dist.get_rank()
    self.src_mesh = DeviceMesh("cpu", torch.tensor(self.src_grid))
    self.dst_mesh = DeviceMesh("cpu", torch.tensor(self.dst_grid))
    self.source: Tensors = {}
    self.target: Tensors = {}
    self.expected: dict[str, torch.Tensor] = {}
    for i in range(tensors):
      full = torch.arange(rows * rows, dtype=torch.int64).add_(i * 7919).to(torch.int16).view(rows, rows)
      full = full.view(torch.bfloat16)
      key = f"layers.{i}.weight"
      if self.rank in torch.tensor(self.src_grid).flatten().tolist():
        self.source[key] = distribute_tensor(full, self.src_mesh, self.src_placements, src_data_rank=None)
      if self.rank in torch.tensor(self.dst_grid).flatten().tolist():
        self.target[key] = distribute_tensor(full, self.dst_mesh, self.dst_placements, src_data_rank=None)
        self.expected[key] = self.target[key].to_local().clone()
    self.names = [f"layers.{i}.weight" for i in range(tensors)]
    self.shape = (rows, rows)
    self.source_layout = reshard.of_dtensors(self.source)
    self.target_layout = reshard.of_dtensors(self.target, self.source_layout.model)
    self.plan = reshard.plan(self.source_layout, self.target_layout)
    self.addresses: list[dict[str, int]] = [{} for _ in range(RANKS)]
    mine = {n: t.to_local().data_ptr() for n, t in self.source.items()}
    dist.all_gather_object(self.addresses, mine)

  def clear(self) -> None:
    for tensor in self.target.values():
      tensor.to_local().zero_()

  def check(self, way: str) -> None:
    for name, tensor in self.target.items():
      if not torch.equal(tensor.to_local().view(torch.int16), self.expected[name].view(torch.int16)):
        raise RuntimeError(f"{way}: '{name}' on rank {self.rank} has other bytes")

  def pieces(self) -> dict[int, list[Run]]:
    """What this rank receives, by sender: runs of bytes that are one run on both sides."""
    here = {n: t.to_local().data_ptr() for n, t in self.target.items()}
    found: dict[int, list[Run]] = {}
    for transfer in self.plan.rank(self.rank).recvs:
      there = _place(self.source_layout, transfer.src, transfer, self.addresses[transfer.src])
      at = _place(self.target_layout, self.rank, transfer, here)
      runs = found.setdefault(transfer.src, [])
      for run in _runs(transfer.box, there, at):
        last = runs[-1] if runs else (0, 0, 0)
        if (last[0] + last[2], last[1] + last[2]) == run[:2]:
          runs[-1] = (last[0], last[1], last[2] + run[2])
        else:
          runs.append(run)
    return found

  def local_copies(self) -> Way:
    """What stays on this rank: a strided copy of torch for each box."""
    moves = []
    for transfer in self.plan.rank(self.rank).locals:
      sizes = [e - b for b, e in transfer.box]
      views = []
      for layout, side in ((self.target_layout, self.target), (self.source_layout, self.source)):
        at, strides = _place(layout, self.rank, transfer, dict.fromkeys(side, 0))
        memory = side[transfer.tensor].to_local().detach()
        views.append(torch.as_strided(memory, sizes, [s // 2 for s in strides], at // 2))
      moves.append((views[0], views[1]))

    def run() -> None:
      for into, out_of in moves:
        into.copy_(out_of)

    return run


Place = tuple[int, list[int]]  # address of a box's first element, and strides in bytes (bf16: 2 each)


def _place(layout: reshard.Layout, rank: int, transfer: reshard.Transfer, bases: dict[str, int]) -> Place:
  """Where a box begins in a rank's memory."""
  begin = [b for b, _ in transfer.box]
  for local in layout.local(rank):
    for part in local.fragments:
      inside = all(lo <= b and e <= hi for (lo, hi), (b, e) in zip(part.box, transfer.box, strict=True))
      if part.tensor == transfer.tensor and inside:
        strides = [2 * int(s) for s in part.strides]
        first = [b - lo for (lo, _), b in zip(part.box, begin, strict=True)]
        offset = 2 * part.offset + sum(f * s for f, s in zip(first, strides, strict=True))
        return bases[local.name] + offset, strides
  raise RuntimeError(f"rank {rank} does not have {transfer}")


def _runs(box: reshard.Box, src: Place, dst: Place) -> Iterator[Run]:
  sizes = [e - b for b, e in box]
  for index in itertools.product(*map(range, sizes[:-1])):
    there, here = (at + sum(i * s for i, s in zip(index, steps, strict=False)) for at, steps in (src, dst))
    yield there, here, 2 * sizes[-1]


def by_batch(case: Case) -> Way:
  """One call of xferdtensors: one plan and session."""
  transfers = [
    (
      case.source.get(name),
      case.src_mesh,
      case.src_placements,
      case.target.get(name),
      case.dst_mesh,
      case.dst_placements,
    )
    for name in case.names
  ]
  return lambda: dtensor.xferdtensors(transfers)


def by_calls(case: Case) -> Way:
  """A call of xferdtensor for each tensor."""

  def run() -> None:
    for name in case.names:
      source, target = case.source.get(name), case.target.get(name)
      dtensor.xferdtensor(
        source, case.src_mesh, case.src_placements, target, case.dst_mesh, case.dst_placements
      )

  return run


def by_full_tensor(case: Case) -> Way:
  """full_tensor() on the source's ranks, a broadcast to ranks that are none, and the target's slice."""
  apart = len(case.src_mesh.mesh.flatten()) < RANKS
  columns = case.shape[1] // 2
  second = case.rank % 2

  def run() -> None:
    for name in case.names:
      if name in case.source:
        full = case.source[name].full_tensor()
      else:
        full = torch.empty(case.shape, dtype=torch.bfloat16)
      if apart:
        dist.broadcast(full, 0)
      if name in case.target:
        case.target[name].to_local().copy_(full[:, second * columns : (second + 1) * columns])
    dist.barrier()

  return run


def by_nixl(case: Case) -> Way:
  """Reads of the plan's pieces, in descriptor lists that are made once."""
  from nixl._api import nixl_agent, nixl_agent_config

  logging.getLogger("nixl").setLevel(logging.WARNING)
  # Its thread for progress would spin through the turns of the others.
  agent = nixl_agent(f"rank{case.rank}", nixl_agent_config(enable_prog_thread=False, backends=[]))
  agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
  memory = [t.to_local() for side in (case.source, case.target) for t in side.values()]
  agent.register_memory([(t.data_ptr(), t.numel() * 2, 0, "") for t in memory], "DRAM")
  everyone: list[Any] = [None] * RANKS
  dist.all_gather_object(everyone, agent.get_agent_metadata())
  pieces = case.pieces()
  local = case.local_copies()
  handles = []
  for sender, runs in pieces.items():
    name = agent.add_remote_agent(everyone[sender])
    here = agent.get_xfer_descs([(dst, size, 0) for _, dst, size in runs], "DRAM")
    there = agent.get_xfer_descs([(src, size, 0) for src, _, size in runs], "DRAM")
    handles.append(agent.initialize_xfer("READ", here, there, name))

  def run() -> None:
    states = [agent.transfer(handle) for handle in handles]
    local()
    while any(state != "DONE" for state in states):
      if "ERR" in states:
        raise RuntimeError("NIXL: a transfer failed")
      os.sched_yield()
      states = [agent.check_xfer_state(handle) for handle in handles]
    dist.barrier()

  run.agent = agent  # type: ignore[attr-defined]  # lives as long as the way
  return run


def by_mooncake(case: Case) -> Way:
  """Reads of the plan's pieces, in batches of what it takes at a time over TCP."""
  os.environ.setdefault("MC_FORCE_TCP", "1")
  os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
  from mooncake.engine import TransferEngine

  engine = TransferEngine()
  if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
    raise RuntimeError("Mooncake: initialize failed")
  for side in (case.source, case.target):
    for tensor in side.values():
      if engine.register_memory(tensor.to_local().data_ptr(), tensor.to_local().numel() * 2) != 0:
        raise RuntimeError("Mooncake: register_memory failed")
  everyone: list[Any] = [None] * RANKS
  dist.all_gather_object(everyone, f"127.0.0.1:{engine.get_rpc_port()}")
  pieces = case.pieces()
  local = case.local_copies()
  lists = [
    (everyone[sender], *map(list, zip(*runs[first : first + BATCH], strict=True)))
    for sender, runs in pieces.items()
    for first in range(0, len(runs), BATCH)
  ]

  def run() -> None:
    local()
    for where, there, here, sizes in lists:
      if engine.batch_transfer_sync_read(where, here, there, sizes) != 0:
        raise RuntimeError("Mooncake: a transfer failed")
    dist.barrier()

  return run


MODULES = {"nixl": "nixl", "mooncake": "mooncake.engine"}
WAYS: dict[str, Callable[[Case], Way]] = {
  "reshard, batch": by_batch,
  "reshard, one by one": by_calls,
  "full_tensor": by_full_tensor,
  "nixl": by_nixl,
  "mooncake": by_mooncake,
}


def prepared(case: Case) -> dict[str, Way]:
  """The ways that all ranks can use, each tried once and checked."""
  ways: dict[str, Way] = {}
  for name, make in WAYS.items():
    reason = _error(lambda: importlib.import_module(MODULES.get(name, "reshard")))
    if not reason:
      case.clear()
      dist.barrier()
      reason = _error(lambda: _first(ways, name, make, case))
    if reason:
      ways.pop(name, None)
      if case.rank == 0:
        print(f"  {name}: left out ({reason})", flush=True)
  return ways


def _first(ways: dict[str, Way], name: str, make: Callable[[Case], Way], case: Case) -> None:
  way = make(case)
  way()
  case.check(name)
  ways[name] = way


def _error(step: Callable[[], object]) -> str:
  """What step() raised on any rank; "" if it went well on all."""
  said = ""
  try:
    step()
  except (ImportError, RuntimeError) as error:
    said = str(error)
  everyone: list[Any] = [None] * RANKS
  dist.all_gather_object(everyone, said)
  return next((text for text in everyone if text), "")


def measure(name: str, tensors: int, rows: int, rounds: int) -> None:
  case = Case(name, tensors, rows)
  if case.rank == 0:
    delivered = case.plan.bytes_total / 1e6
    print(f"{name}: {tensors} tensors of {rows} x {rows} bf16, {delivered:.0f} MB delivered", flush=True)
  ways = prepared(case)
  seconds: dict[str, list[float]] = {way: [] for way in ways}
  for turn in range(rounds):
    order = list(ways)
    for label in order[turn % len(order) :] + order[: turn % len(order)]:
      case.clear()
      dist.barrier()
      begin = time.perf_counter()
      ways[label]()
      mine = torch.tensor(time.perf_counter() - begin)
      dist.all_reduce(mine, dist.ReduceOp.MAX)
      seconds[label].append(float(mine))
      case.check(label)
  if case.rank == 0:
    report(seconds, case.plan.bytes_total)


def report(seconds: dict[str, list[float]], delivered: int) -> None:
  for label, times in seconds.items():
    middle = statistics.median(times)
    print(
      f"  {label:20}{min(times) * 1e3:10.2f} ms least{middle * 1e3:10.2f} ms median"
      f"{delivered / middle / 1e9:8.2f} GB/s"
    )
  others = {label: statistics.median(times) for label, times in seconds.items() if "reshard" not in label}
  best = min(others, key=lambda label: others[label])
  ratio = others[best] / statistics.median(seconds["reshard, batch"])
  print(f"  best other: {best}; reshard, batch is {ratio:.2f} times as fast (medians)", flush=True)


def process(rank: int, store: str, tensors: int, rows: int, rounds: int) -> None:
  torch.set_num_threads(1)
  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
  for name in CASES:
    measure(name, tensors, rows, rounds)
  dtensor.close_sessions()
  dist.barrier()
  sys.stdout.flush()
  os._exit(0)  # the others' engines have threads that do not end


def main() -> None:
  tensors = int(sys.argv[1]) if len(sys.argv) > 1 else 16
  rows = int(sys.argv[2]) if len(sys.argv) > 2 else 2048
  rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 10
  context = multiprocessing.get_context("spawn")
  with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
    arguments = (f"{folder}/store", tensors, rows, rounds)
    ranks = [context.Process(target=process, args=(rank, *arguments)) for rank in range(RANKS)]
    for one in ranks:
      one.start()
    for one in ranks:
      one.join()
  failed = [rank for rank, one in enumerate(ranks) if one.exitcode != 0]
  if failed:
    raise SystemExit(f"ranks {failed} failed")


if __name__ == "__main__":
  main()
