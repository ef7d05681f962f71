# SPDX-License-Identifier: Apache-2.0
"""The copies of one run of a copy service, as two layouts of one model."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

import reshard
from reshard.live._parts import Held, whole_runs
from reshard.live._ranks import FullTensors
from reshard.tracing._types import safetensors_name

#: The most copies that an error names.
_NAMED = 5


@dataclasses.dataclass(slots=True)
class Task:
  """One side of a copy, as this rank submitted it."""

  task: int | None  # equal on both sides; None: told apart by their order
  tensor: torch.Tensor
  peer: int


@dataclasses.dataclass(frozen=True)
class _End:
  """One side of a copy, as its rank described it."""

  rank: int
  dtype: str
  shape: tuple[int, ...]

  def __str__(self) -> str:
    return f"rank {self.rank} has {self.dtype} {list(self.shape)}"


def names_of(tasks: Sequence[Task], rank: int, sends: bool) -> list[str]:
  """A name for each that both sides find: source, destination, id, and which of those with this id.

  Tensors that share an id, such as the data and the scales of a quantised weight, follow each other in
  the same order on both sides. So do those without an id.
  """
  seen: dict[tuple[int, int | None], int] = {}
  names = []
  for task in tasks:
    key = (task.peer, task.task)
    number = seen.get(key, 0)
    seen[key] = number + 1
    source, target = (rank, task.peer) if sends else (task.peer, rank)
    which = "no id" if task.task is None else f"task {task.task}"
    names.append(f"{which} from rank {source} to {target}" + (f" ({number + 1})" if number else ""))
  return names


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
  return tuple(tensor.shape) or (1,)


def digest_of(sends: Sequence[Task], recvs: Sequence[Task]) -> bytes:
  """16 bytes that change with any id, peer, shape or dtype, and not with addresses or values."""
  said = [
    [(t.task, t.peer, t.tensor.dtype, tuple(t.tensor.shape)) for t in tasks] for tasks in (sends, recvs)
  ]
  return hashlib.blake2b(repr(said).encode(), digest_size=16).digest()


def described(tasks: Sequence[Task], rank: int, sends: bool) -> list[list[Any]]:
  """[name, dtype, shape] of each, as JSON. Tensors without elements are left out."""
  return [
    [name, safetensors_name(task.tensor.dtype), list(shape_of(task.tensor))]
    for name, task in zip(names_of(tasks, rank, sends), tasks, strict=True)
    if task.tensor.numel() > 0
  ]


def layouts_of(said: Sequence[dict[str, Any]]) -> tuple[reshard.Layout, reshard.Layout] | None:
  """The layouts of what all ranks send and receive; None if that is nothing.

  said  by rank: what `described()` returned, as "sends" and "recvs"

  Raises InvalidArgumentError that names copies with one side only, or with two that differ.
  """
  sources, targets = _ends(said, "sends"), _ends(said, "recvs")
  wrong = list(_mismatches(sources, targets))
  if wrong:
    more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    raise reshard.InvalidArgumentError("copy service: " + "; ".join(wrong[:_NAMED]) + more)
  if not sources:
    return None
  source = FullTensors(None).layout("senders", _held(sources), "")
  return source, FullTensors(source.model).layout("receivers", _held(targets), "")


def _ends(said: Sequence[dict[str, Any]], side: str) -> dict[str, _End]:
  return {
    str(name): _End(rank, str(dtype), tuple(int(n) for n in shape))
    for rank, of_rank in enumerate(said)
    for name, dtype, shape in of_rank[side]
  }


def _mismatches(sources: dict[str, _End], targets: dict[str, _End]) -> Iterable[str]:
  for name, source in sources.items():
    target = targets.get(name)
    if target is None:
      yield f"{name} is sent, but not received"
    elif (source.dtype, source.shape) != (target.dtype, target.shape):
      yield f"{name}: {source}, but {target}"
  for name in targets:
    if name not in sources:
      yield f"{name} is received, but not sent"


def _held(ends: dict[str, _End]) -> dict[int, list[Held]]:
  ranks: dict[int, list[Held]] = {}
  for name, end in ends.items():
    held = Held(name, name, end.dtype, end.shape, whole_runs(end.shape))
    ranks.setdefault(end.rank, []).append(held)
  return ranks
