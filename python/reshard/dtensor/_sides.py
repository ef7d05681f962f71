# SPDX-License-Identifier: Apache-2.0
"""One side of a transfer: what this rank says of it, and what all ranks' words amount to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from reshard import _core
from reshard._errors import InvalidArgumentError
from reshard.dtensor._grids import Grid, Packed, grid_of, placements_of, shards, spelled
from reshard.dtensor._memory import check_memory
from reshard.live._parts import Held
from reshard.live._placements import runs_of
from reshard.live._ranks import FullTensors, Ranks
from reshard.tracing._types import safetensors_name


@dataclasses.dataclass(frozen=True)
class Item:
  """The arguments of one xferdtensor()."""

  src: Any
  src_mesh: Any
  src_placement: Any
  dst: Any
  dst_mesh: Any
  dst_placement: Any
  stream: Any = None
  name: str = "tensor"


@dataclasses.dataclass(frozen=True)
class Side:
  """The source, or the target, of one item, as this rank knows it."""

  tensor: torch.Tensor | None  # this rank's shard; None: it has none
  shape: tuple[int, ...] | None  # of the full tensor, if the argument says
  grid: Grid | None
  placements: tuple[tuple[Any, ...], ...] | None
  own: bool = False  # mesh and placements are the DTensor's: other ranks may have other meshes

  def say(self) -> dict[str, Any]:
    """The message to the others, as JSON."""
    tensor = self.tensor
    return {
      "shape": None if self.shape is None else list(self.shape),
      "grid": None if self.grid is None else self.grid.pack(),
      "placements": None if self.placements is None else [list(p) for p in self.placements],
      "local": None if tensor is None else list(tensor.shape),
      "dtype": None if tensor is None else safetensors_name(tensor.dtype),
      "own": self.own,
    }


class Reader:
  """Reads arguments. Meshes that are the same object are read once."""

  def __init__(self, rank: int, size: int, ranks: Mapping[int, int] | None) -> None:
    self.rank, self._size, self._ranks = rank, size, ranks
    self._grids: dict[int, Grid] = {}
    self._placements: dict[tuple[int, int], tuple[tuple[Any, ...], ...]] = {}

  def source(self, item: Item) -> Side:
    return self._side(item.src, item.src_mesh, item.src_placement, item.name, "src")

  def target(self, item: Item) -> Side:
    side = self._side(item.dst, item.dst_mesh, item.dst_placement, item.name, "dst")
    if side.tensor is not None and not side.tensor.is_contiguous():
      if any(s == 0 and n > 1 for s, n in zip(side.tensor.stride(), side.tensor.shape, strict=True)):
        raise InvalidArgumentError(f"{item.name}: dst_tensor is expanded: its elements share memory")
    return side

  def _side(self, given: Any, mesh: Any, placements: Any, name: str, side: str) -> Side:
    own = isinstance(given, DTensor) and mesh is None and placements is None
    if isinstance(given, DTensor):
      mesh = given.device_mesh if mesh is None else mesh
      placements = given.placements if placements is None else placements
    what = f"{name}: {side}_"
    grid = None if mesh is None else self._grid(mesh, what + "mesh")
    packed = None
    if placements is not None:
      packed = self._packed(placements, None if grid is None else len(grid.shape), what + "placement")
    tensor, shape = local_of(given, what + "tensor")
    if tensor is not None and grid is not None and self.rank not in grid.ranks:
      if shape is None and math.prod(tensor.shape) > 0:
        raise InvalidArgumentError(f"{what}tensor: this rank, {self.rank}, is not in {side}_mesh")
      tensor = None
    return Side(tensor, shape, grid, packed, own)

  def _grid(self, mesh: Any, what: str) -> Grid:
    found = self._grids.get(id(mesh))
    if found is None:
      found = self._grids[id(mesh)] = grid_of(mesh, self._ranks, self._size, what)
    return found

  def _packed(self, placements: Any, dims: int | None, what: str) -> tuple[tuple[Any, ...], ...]:
    key = (id(placements), -1 if dims is None else dims)
    found = self._placements.get(key)
    if found is None:
      found = tuple(tuple(p) for p in placements_of(placements, dims, what))
      self._placements[key] = found
    return found


def local_of(given: Any, what: str) -> tuple[torch.Tensor | None, tuple[int, ...] | None]:
  """This rank's shard, and the shape of the full tensor if the object says."""
  shape = None
  if given is None:
    return None, None
  if isinstance(given, DTensor):
    shape = given.shape
    with torch.no_grad():
      given = given.to_local()
  elif getattr(given, "_local_tensor", None) is not None:
    shape, given = given.shape, given._local_tensor
  if not isinstance(given, torch.Tensor):
    raise InvalidArgumentError(
      f"{what}: a DTensor, a tensor, an object with .shape and ._local_tensor, or None; "
      f"not {type(given).__name__}"
    )
  if given.layout != torch.strided or given.is_meta:
    where = f"a {given.layout} tensor on {given.device}"
    raise InvalidArgumentError(f"{what}: {where} has no memory of its elements")
  check_memory(given, what)
  return given.detach(), None if shape is None else tuple(int(n) for n in shape)


Said = Mapping[str, Any]


def layouts_of(
  names: Sequence[str], said: Sequence[Sequence[Sequence[Said]]]
) -> tuple[_core.Layout, _core.Layout]:
  """The layouts of both sides. `said[rank][item]`: of the source, and of the target.

  A function of what all ranks said: an error is the same on all of them.
  """
  sources: Ranks = {}
  targets: Ranks = {}
  for i, name in enumerate(names):
    words = [[answer[i][k] for answer in said] for k in (0, 1)]
    shape = _shape(name, words)
    for k, ranks in enumerate((sources, targets)):
      _add(ranks, name, ("src", "dst")[k], words[k], shape)
  source = FullTensors(None).layout("source", sources, "")
  return source, FullTensors(source.model).layout("target", targets, "")


def _common(words: Sequence[Said], key: str, what: str) -> Any:
  """What all ranks that say `key` say."""
  first: tuple[int, Any] | None = None
  for rank, word in enumerate(words):
    if word[key] is None:
      continue
    if first is None:
      first = rank, word[key]
    elif word[key] != first[1]:
      raise InvalidArgumentError(f"{what} is {first[1]} on rank {first[0]}, but {word[key]} on rank {rank}")
  return None if first is None else first[1]


def _placed(words: Sequence[Said], name: str, side: str) -> tuple[Grid, list[Packed]]:
  grid = _common(words, "grid", f"{name}: {side}_mesh")
  placements = _common(words, "placements", f"{name}: {side}_placement")
  for value, what in ((grid, "mesh"), (placements, "placement")):
    if value is None:
      raise InvalidArgumentError(f"{name}: no rank says {side}_{what}")
  shape, ranks = grid
  if len(placements) != len(shape):
    raise InvalidArgumentError(
      f"{name}: {side}_placement has {len(placements)} placements for a mesh of {len(shape)} dimensions"
    )
  return Grid(tuple(shape), tuple(ranks)), placements


def _shape(name: str, words: Sequence[Sequence[Said]]) -> tuple[int, ...]:
  """Of the full tensor: as objects say it, else the sum of its shards."""
  shapes = []
  for side, here in zip(("src", "dst"), words, strict=True):
    found = _common(here, "shape", f"{name}: the shape of {side}_tensor")
    shapes.append(_summed(name, side, here) if found is None else tuple(found))
  if shapes[0] != shapes[1]:
    raise InvalidArgumentError(
      f"{name}: src_tensor has shape {list(shapes[0])}, but dst_tensor has {list(shapes[1])}"
    )
  return tuple(shapes[0])


def _summed(name: str, side: str, words: Sequence[Said]) -> tuple[int, ...]:
  grid, placements = _placed(words, name, side)
  first = _has(name, side, words, grid.ranks[0])["local"]
  cuts = shards(placements, grid.shape, len(first), f"{name}: {side}_placement")
  extents = []
  for dim, here in enumerate(cuts):
    dims = {shard.mesh_dim for shard in here}
    extent = 0
    for rank, at in grid.coordinates():
      if all(k == 0 or i in dims for i, k in enumerate(at)):
        local = _has(name, side, words, rank)["local"]
        extent += local[dim] if len(local) == len(first) else 0
    extents.append(extent)
  return tuple(extents)


def _has(name: str, side: str, words: Sequence[Said], rank: int) -> Said:
  if words[rank]["local"] is None:
    raise InvalidArgumentError(f"{name}: rank {rank} is in {side}_mesh, but passes no {side}_tensor")
  return words[rank]


def _add(ranks: Ranks, name: str, side: str, words: Sequence[Said], shape: tuple[int, ...]) -> None:
  """What ranks hold of one tensor."""
  dtype = _common(words, "dtype", f"{name}: the dtype of {side}_tensor")
  what = f"{name}: {side}_placement"
  if any(word["own"] for word in words):
    places = []
    for rank, word in enumerate(words):
      if word["local"] is not None:
        grid, placements = _placed([word], name, side)
        places.append((rank, dict(grid.coordinates())[rank], grid, placements))
  else:
    grid, placements = _placed(words, name, side)
    places = [(rank, at, grid, placements) for rank, at in grid.coordinates()]
  for rank, at, grid, placements in places:
    cuts = shards(placements, grid.shape, len(shape), what)
    runs = tuple(runs_of(size, here, at) for size, here in zip(shape, cuts, strict=True))
    held = Held(name, name, dtype, shape, runs)
    _check_local(held, side, _has(name, side, words, rank)["local"], rank, (grid, placements))
    ranks.setdefault(rank, []).append(held)


def _check_local(
  held: Held, side: str, local: Sequence[int], rank: int, by: tuple[Grid, list[Packed]]
) -> None:
  if tuple(local) == held.local_shape or math.prod(local) + math.prod(held.local_shape) == 0:
    return
  raise InvalidArgumentError(
    f"{held.name}: {side}_tensor has the local shape {list(local)} on rank {rank}, but a tensor of "
    f"{list(held.shape)} with placements {spelled(by[1])} over a mesh {list(by[0].shape)} would have "
    f"{list(held.local_shape)} there"
  )
