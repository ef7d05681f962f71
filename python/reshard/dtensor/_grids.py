# SPDX-License-Identifier: Apache-2.0
"""Meshes and placements as callers write them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.distributed.tensor import Replicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.placement_types import _StridedShard

from reshard._errors import InvalidArgumentError, UnsupportedError
from reshard.live._placements import Shard, shards_of

MAX_DIMS = 8
Packed = list[Any]  # ["R"], ["S", dim] or ["_S", dim, split_factor]


@dataclasses.dataclass(frozen=True)
class Grid:
  """The ranks of a mesh, row-major, as ranks of the group."""

  shape: tuple[int, ...]
  ranks: tuple[int, ...]

  def coordinates(self) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(rank, where it is in the mesh)."""
    return zip(self.ranks, itertools.product(*map(range, self.shape)), strict=True)

  def pack(self) -> list[list[int]]:
    return [list(self.shape), list(self.ranks)]


def grid_of(mesh: Any, ranks: Mapping[int, int] | None, size: int, what: str) -> Grid:
  """The grid of a DeviceMesh, an object with `.mesh`, an integer tensor or array, or nested lists.

  ranks  {global rank: rank in the group}; None: they are the same
  size   of the group
  what   names the argument in errors
  """
  shape, flat = _flat(mesh, what)
  if not flat or len(shape) > MAX_DIMS:
    raise InvalidArgumentError(f"{what} {list(shape)}: must have 1 to {MAX_DIMS} dimensions and a rank")
  if len(set(flat)) != len(flat):
    twice = sorted({rank for rank in flat if flat.count(rank) > 1})
    raise InvalidArgumentError(f"{what} names rank {twice[0]} twice")
  known = dict(enumerate(range(size))) if ranks is None else ranks
  outside = sorted(rank for rank in flat if rank not in known)
  if outside:
    raise InvalidArgumentError(
      f"{what} names ranks {outside}, which are not in the process group of ranks {_short(sorted(known))}"
    )
  return Grid(shape, tuple(known[rank] for rank in flat))


def shape_of(mesh: Any, what: str) -> tuple[int, ...]:
  """The shape of what grid_of() takes."""
  return _flat(mesh, what)[0]


def _short(ranks: Sequence[int]) -> str:
  consecutive = list(ranks) == list(range(ranks[0], ranks[-1] + 1))
  return f"{ranks[0]} to {ranks[-1]}" if consecutive else str(list(ranks))


def _flat(mesh: Any, what: str) -> tuple[tuple[int, ...], list[int]]:
  dims, start = getattr(mesh, "dims", None), getattr(mesh, "start_rank", None)
  if dims is not None and start is not None:  # nccl.m2n.Mesh
    sizes = tuple(int(n) for n in dims[: getattr(mesh, "ndims", len(dims))])
    return sizes, list(range(int(start), int(start) + math.prod(sizes)))
  for name in ("mesh", "_mesh"):
    if getattr(mesh, name, None) is not None:
      mesh = getattr(mesh, name)
      break
  nested = mesh.tolist() if hasattr(mesh, "tolist") else mesh
  if not isinstance(nested, Sequence) or isinstance(nested, str | bytes):
    raise InvalidArgumentError(
      f"{what}: a DeviceMesh, an object with .mesh, an integer tensor or nested lists of ranks, "
      f"not {type(mesh).__name__}"
    )
  shape: list[int] = []
  level: list[Any] = [nested]
  while isinstance(level[0], Sequence):
    lengths = {len(row) if isinstance(row, Sequence) else -1 for row in level}
    if len(lengths) != 1 or 0 in lengths:
      raise InvalidArgumentError(f"{what}: rows of ranks have different lengths, or none")
    shape.append(lengths.pop())
    level = [entry for row in level for entry in row]
  if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in level):
    raise InvalidArgumentError(f"{what}: ranks must be integers")
  return tuple(shape), level


def placements_of(placements: Any, dims: int | None, what: str) -> list[Packed]:
  """Placements of torch, of nccl.m2n or as integers (the dimension that is cut), packed.

  dims  of the mesh, which the placements must have; None: not known
  """
  if not isinstance(placements, Sequence) or isinstance(placements, str | bytes):
    raise InvalidArgumentError(f"{what}: a list of placements, not {type(placements).__name__}")
  if dims is not None and len(placements) != dims:
    raise InvalidArgumentError(f"{what} has {len(placements)} placements for a mesh of {dims} dimensions")
  return [_packed(placement, what) for placement in placements]


def _packed(placement: Any, what: str) -> Packed:
  kind = type(placement).__name__
  if kind == "Replicate":
    return ["R"]
  if kind == "Shard":
    return ["S", int(placement.dim)]
  if kind == "_StridedShard":
    return ["_S", int(placement.dim), int(placement.split_factor)]
  if isinstance(placement, int) and not isinstance(placement, bool) and placement >= 0:
    return ["S", placement]
  why = "has partial sums, which are no weights" if "Partial" in kind else "is not supported"
  raise UnsupportedError(f"{what}: placement {placement} {why}")


def shards(packed: Sequence[Packed], mesh: Sequence[int], rank: int, what: str) -> list[list[Shard]]:
  """What cuts each of the `rank` dimensions of a tensor."""
  made: list[Any] = []
  for place in packed:
    if place[0] == "R":
      made.append(Replicate())
      continue
    dim = place[1]
    if not -rank <= dim < rank:
      raise InvalidArgumentError(f"{what} cuts dimension {dim} of a tensor of {rank} dimensions")
    made.append(TorchShard(dim) if place[0] == "S" else _StridedShard(dim, split_factor=place[2]))
  return shards_of(made, mesh, rank)


def spelled(packed: Sequence[Packed]) -> str:
  """For messages: "[R, S(0)]"."""
  texts = {"R": "R", "S": "S({1})", "_S": "_S({1}, sf={2})"}
  return "[" + ", ".join(texts[place[0]].format(*place) for place in packed) + "]"
