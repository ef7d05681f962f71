# SPDX-License-Identifier: Apache-2.0
"""A plan as sends and receives of slices, for copy services and transforms of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

import reshard
from reshard.live._modules import is_quantised
from reshard.live._parts import Held, Run
from reshard.megatron._pairs import Pair
from reshard.megatron._transforms import Slices, Transform
from reshard.tracing._types import torch_dtype

@dataclasses.dataclass(frozen=True)
class _Operation:
  """One side of a transfer."""

  name: str  # of the local tensor
  slices: Slices
  peer: int
  task: int  # equal on both sides
  dtype: torch.dtype  # on the wire


class Operations:
  """One rank's part of the plan of a pair of models."""

  def __init__(self, pair: Pair, rank: int, size: int) -> None:
    self._sends: list[_Operation] = []
    self._recvs: list[_Operation] = []
    if rank not in pair.source.ranks and rank not in pair.target.ranks:
      return
    plan = reshard.plan(pair.source, pair.target, ignore=pair.ignored).rank(rank)
    dtypes = {h.whole: torch_dtype(h.dtype) for held in pair.source_held.values() for h in held}
    mine, theirs = pair.source_held.get(rank, []), pair.target_held.get(rank, [])
    outgoing, incoming = [*plan.sends, *plan.locals], [*plan.recvs, *plan.locals]
    self._sends += _operations(outgoing, mine, True, size, dtypes)
    self._recvs += _operations(incoming, theirs, False, size, dtypes)

  def run(
    self,
    source: Mapping[str, torch.Tensor],
    target: Mapping[str, torch.Tensor],
    service: Any,
    transform: Transform | None,
    group: Any,
  ) -> None:
    """Through a copy service; returns once all ranks have their weights. Collective."""
    values = dict(source)
    for op in self._sends:
      for tensor in _outgoing(op, values, transform):
        _submit(service, "send", tensor, op)
    arrivals = _Arrivals(target, transform)
    for op in self._recvs:
      for buffer in arrivals.buffers(op):
        _submit(service, "recv", buffer, op)
    service.run()
    if getattr(service, "requires_process_group_barrier", True):
      torch.distributed.barrier(group=group)
    arrivals.finish()


def _outgoing(
  op: _Operation, values: dict[str, torch.Tensor], transform: Transform | None
) -> list[torch.Tensor]:
  """What to send. Replaces tensors that are quantised by their values, once in a run."""
  tensor = values[op.name]
  if transform is not None and transform.should_transform(op.name):
    return [t.contiguous() for t in transform.prepare_send(op.name, op.slices, tensor)]
  if is_quantised(tensor):
    tensor = values[op.name] = tensor.dequantize().to(op.dtype)
  return [tensor[op.slices].contiguous()]


class _Arrivals:
  """Where the tensors of a run arrive, and what is left to do once they have."""

  def __init__(self, target: Mapping[str, torch.Tensor], transform: Transform | None) -> None:
    self._target = target
    self._transform = transform
    self._left: list[Callable[[], Any]] = []
    self._to_quantise: dict[str, torch.Tensor] = {}  # a scale may depend on several slices

  def buffers(self, op: _Operation) -> list[torch.Tensor]:
    transform = self._transform
    if transform is not None and transform.should_transform(op.name):
      buffers = list(transform.prepare_recv(op.name, op.slices))
      self._left.append(partial(transform.finalize_recv, op.name, op.slices, buffers))
      return buffers
    view = self._values(op)[op.slices]
    if view.is_contiguous() and view.dtype == op.dtype:
      return [view]
    buffer = torch.empty(view.shape, dtype=op.dtype, device=view.device)
    self._left.append(partial(view.copy_, buffer))
    return [buffer]

  def _values(self, op: _Operation) -> torch.Tensor:
    tensor = self._target[op.name]
    if not is_quantised(tensor):
      return tensor
    if op.name not in self._to_quantise:
      self._to_quantise[op.name] = torch.empty(tensor.shape, dtype=op.dtype, device=tensor.device)
    return self._to_quantise[op.name]

  def finish(self) -> None:
    for work in self._left:
      work()
    for name, values in self._to_quantise.items():
      quantised: Any = self._target[name]
      quantised.quantize_(values)


def _submit(service: Any, kind: str, tensor: torch.Tensor, op: _Operation) -> None:
  with_id = getattr(service, f"submit_{kind}_with_id", None)  # before 0.18
  if with_id is not None:
    with_id(op.task, tensor, op.peer)
  else:
    getattr(service, f"submit_{kind}")(tensor, op.peer, task_id=op.task)


def _operations(
  transfers: Sequence[reshard.Transfer],
  held: Sequence[Held],
  sends: bool,
  size: int,
  dtypes: Mapping[str, torch.dtype],
) -> Iterator[_Operation]:
  """The ids count the transfers of each pair of ranks, which both list in the same order."""
  by_whole: dict[str, list[Held]] = {}
  for tensor in held:
    by_whole.setdefault(tensor.whole, []).append(tensor)
  counts: dict[tuple[int, int], int] = {}
  for transfer in transfers:
    pair = (transfer.src, transfer.dst)
    counts[pair] = counts.get(pair, 0) + 1
    task = ((transfer.dst * size + transfer.src) << 32) + counts[pair] - 1
    box = [(int(begin), int(end)) for begin, end in transfer.box]
    name, slices = _local(by_whole.get(transfer.tensor, []), box, transfer.tensor)
    yield _Operation(name, slices, transfer.dst if sends else transfer.src, task, dtypes[transfer.tensor])


def _local(held: Sequence[Held], box: Sequence[Run], whole: str) -> tuple[str, Slices]:
  for tensor in held:
    found = [_within(runs, run) for runs, run in zip(tensor.runs, box, strict=True)]
    if all(at is not None for at in found):
      return tensor.name, tuple(at for at in found if at is not None)
  raise reshard.InvalidArgumentError(f"'{whole}': the box {list(box)} is in no local tensor")


def _within(runs: Sequence[Run], wanted: Run) -> slice | None:
  first = 0
  for begin, end in runs:
    if begin <= wanted[0] and wanted[1] <= end:
      return slice(first + wanted[0] - begin, first + wanted[1] - begin)
    first += end - begin
  return None
