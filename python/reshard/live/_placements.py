# SPDX-License-Identifier: Apache-2.0
"""Which indices of a tensor a rank of a device mesh holds, from placements."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from reshard._errors import UnsupportedError
from reshard.live._parts import Held, Run


@dataclasses.dataclass(frozen=True)
class Shard:
  """A mesh dimension that cuts a tensor dimension."""

  mesh_dim: int
  size: int
  split_factor: int  # 1: a plain Shard


def shards_of(placements: Sequence[Any], mesh: Sequence[int], rank: int) -> list[list[Shard]]:
  """For each of the `rank` dimensions of a tensor: what cuts it, in the order of the mesh.

  Raises UnsupportedError for placements that are neither Replicate, Shard nor _StridedShard.
  """
  found: list[list[Shard]] = [[] for _ in range(rank)]
  for mesh_dim, placement in enumerate(placements):
    kind = type(placement).__name__
    if kind == "Replicate":
      continue
    if kind not in ("Shard", "_StridedShard"):
      why = "has partial sums, which are no weights" if "Partial" in kind else "is not supported"
      raise UnsupportedError(f"placement {placement} {why}")
    dim = placement.dim + rank if placement.dim < 0 else placement.dim
    factor = placement.split_factor if kind == "_StridedShard" else 1
    found[dim].append(Shard(mesh_dim, int(mesh[mesh_dim]), int(factor)))
  return found


def runs_of(extent: int, shards: Sequence[Shard], at: Sequence[int]) -> tuple[Run, ...]:
  """The indices of [0, extent) at these coordinates of the mesh, in storage order.

  As the memory of FSDP2 has them: a strided shard comes after those to its right that it says were
  there before (their sizes multiply to its split factor); each cuts what is left as torch.chunk
  does. Strided shards without such an order are cut by their definition: into split_factor chunks,
  then each of those.
  """
  order = _order(shards)
  runs: list[Run] = [(0, extent)]
  for shard in shards if order is None else order:
    factor = shard.split_factor if order is None else 1
    runs = _cut(runs, factor, shard.size, at[shard.mesh_dim])
  return tuple(runs) or ((0, 0),)


def held_at(
  names: tuple[str, str],
  dtype: str,
  shape: Sequence[int],
  placed: tuple[Sequence[Any], Sequence[int]],
  at: Sequence[int],
) -> Held:
  """The part of a tensor at coordinates of a mesh. Raises UnsupportedError as shards_of(), with the name.

  names   of the local tensor, and of the full one
  placed  placements, and the sizes of the mesh
  """
  try:
    shards = shards_of(*placed, len(shape))
  except UnsupportedError as error:
    raise UnsupportedError(f"'{names[0]}': {error}") from None
  runs = tuple(runs_of(int(size), here, at) for size, here in zip(shape, shards, strict=True))
  return Held(*names, dtype, tuple(int(n) for n in shape), runs)


def _order(shards: Sequence[Shard]) -> list[Shard] | None:
  left, order = list(shards), list[Shard]()
  while left:
    for shard in left:
      before = 1
      for other in order:
        before *= other.size if other.mesh_dim > shard.mesh_dim else 1
      if before == shard.split_factor:
        break
    else:
      return None
    left.remove(shard)
    order.append(shard)
  return order


def _cut(runs: Sequence[Run], factor: int, size: int, at: int) -> list[Run]:
  """Part `at` of `size` of each of `factor` chunks of runs that follow each other."""
  total = sum(end - begin for begin, end in runs)
  held: list[Run] = []
  for begin, end in _chunks(total, factor):
    parts = _chunks(end - begin, size)
    low, high = parts[at] if at < len(parts) else (0, 0)
    held += _slice(runs, begin + low, begin + high)
  merged: list[Run] = []
  for begin, end in held:
    if merged and merged[-1][1] == begin:
      merged[-1] = (merged[-1][0], end)
    else:
      merged.append((begin, end))
  return merged


def _chunks(extent: int, number: int) -> list[Run]:
  """torch.chunk: ceil(extent / number) each, then the rest."""
  each = -(-extent // number)
  return [(begin, min(begin + each, extent)) for begin in range(0, extent, each)] if each else []


def _slice(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
  found, at = [], 0
  for low, high in runs:
    first, last = max(begin, at), min(end, at + high - low)
    if first < last:
      found.append((low + first - at, low + last - at))
    at += high - low
  return found
