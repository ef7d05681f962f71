# SPDX-License-Identifier: Apache-2.0
"""What one side of a refit of modules has on this rank, and how it lies on meshes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from reshard import _core
from reshard._errors import InvalidArgumentError
from reshard.dtensor._grids import grid_of, placements_of, shards, spelled
from reshard.dtensor._sides import local_of
from reshard.live._second import same_tensor
from reshard._names import Names, matches, renamed
from reshard.live._parts import Held, whole_runs
from reshard.live._placements import runs_of
from reshard.tracing._types import safetensors_name

Where = tuple[Any, Sequence[Any]] | None  # mesh and placements; None: whole on each rank that has it
Place = Callable[[str, Any], Where] | Sequence[tuple[str, Any, Any]] | None


def tensors_of(side: Any, what: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
  """The tensors of a module, a list of modules or a dict, by name; and those that are one tensor:
  {name: other names}. Tied tensors are there under each name."""
  if side is None:
    return {}, {}
  if isinstance(side, Mapping):
    named = list(side.items())
  elif isinstance(side, torch.nn.Module):
    named = list(_of_module(side))
  elif isinstance(side, Sequence) and all(isinstance(module, torch.nn.Module) for module in side):
    named = [pair for module in side for pair in _of_module(module)]
  else:
    kind = type(side).__name__
    raise InvalidArgumentError(f"{what}: a module, a list of modules, a dict or None, not {kind}")
  found: dict[str, Any] = {}
  first: dict[Any, str] = {}
  tied: dict[str, list[str]] = {}
  for name, tensor in named:
    if found.setdefault(name, tensor) is not tensor:
      raise InvalidArgumentError(f"{what}: two modules have a tensor '{name}'")
    before = name if tensor is None else first.setdefault(same_tensor(tensor), name)
    if before != name:
      tied.setdefault(before, []).append(name)
  return found, tied


def _of_module(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
  """Parameters and persistent buffers, tied ones by each of their names."""
  yield from module.named_parameters(remove_duplicate=False)
  for prefix, inside in module.named_modules(remove_duplicate=False):
    for name, buffer in inside.named_buffers(recurse=False):
      if name not in inside._non_persistent_buffers_set:
        yield f"{prefix}.{name}" if prefix else name, buffer


def _placing(place: Place, what: str) -> Callable[[str, Any], Where]:
  if place is None:
    return lambda name, tensor: None
  if callable(place):
    return place
  rules = [(matches(pattern), mesh, placements) for pattern, mesh, placements in place]

  def find(name: str, tensor: Any) -> Where:
    for match, mesh, placements in rules:
      if match(name):
        return None if mesh is None else (mesh, placements)
    raise InvalidArgumentError(f"{what}: no rule says where '{name}' lies")

  return find


class Described:
  """The tensors of a side on this rank, each as a part of a full tensor."""

  def __init__(self, given: Any, names: Names, place: Place, what: str) -> None:
    self._given, self._what, self._once = given, what, what == "target"
    self._find = renamed(names)
    self._place = _placing(place, f"{what}_place")

  def locals(self) -> dict[str, torch.Tensor]:
    """The tensors as they are now, by name."""
    named, _ = tensors_of(self._given, self._what)
    out = {}
    for name, tensor in named.items():
      if self._find(name) is not None:
        local, _ = local_of(tensor, f"{self._what}: '{name}'")
        if local is not None:
          out[name] = local
    return out

  def held(
    self, rank: int, size: int, ranks: Mapping[int, int] | None, but: Container[str] = ()
  ) -> tuple[list[Held], dict[str, list[str]]]:
    """What this rank holds, and {name: other names} of full tensors that are tied. Without those of `but`.

    A source has a tied tensor under each name, a target under the first.
    """
    named, tied = tensors_of(self._given, self._what)
    second: set[str] = set()
    others = {}
    for name, more in tied.items():
      names = [n for n in (name, *more) if self._find(n) is not None]
      of_layout = any(n in but for n in names)
      second.update(names if of_layout else names[1:] if self._once else ())
      wholes = [whole for whole in map(self._find, names) if whole is not None]
      if wholes:
        others[wholes[0]] = wholes[1:]
    out = []
    for name, tensor in named.items():
      whole = self._find(name)
      if whole is None or tensor is None or name in but or name in second:
        continue
      held = self._held(name, whole, tensor, rank, size, ranks)
      if held is not None:
        out.append(held)
    return out, others

  def _held(
    self, name: str, whole: str, tensor: Any, rank: int, size: int, ranks: Mapping[int, int] | None
  ) -> Held | None:
    what = f"{self._what}: '{name}'"
    local, shape = local_of(tensor, what)
    if local is None:
      return None
    where: Where = None
    if isinstance(tensor, DTensor):
      where = tensor.device_mesh, tensor.placements
    else:
      where = self._place(name, tensor)
    dtype = safetensors_name(local.dtype)
    if where is None:
      if shape is not None and shape != tuple(local.shape):
        raise InvalidArgumentError(f"{what}: its shard is not the whole, and nothing says where it lies")
      sizes = tuple(int(n) for n in local.shape)
      return Held(name, whole, dtype, sizes, whole_runs(sizes))
    grid = grid_of(where[0], ranks, size, what + ": its mesh")
    at = dict(grid.coordinates()).get(rank)
    if at is None:
      if isinstance(tensor, DTensor):
        return None
      raise InvalidArgumentError(f"{what}: this rank, {rank}, is not in its mesh")
    packed = placements_of(where[1], len(grid.shape), what + ": its placements")
    cuts = shards(packed, grid.shape, local.ndim, what + ": its placement")
    full = _even(local, cuts) if shape is None else shape
    runs = tuple(runs_of(n, here, at) for n, here in zip(full, cuts, strict=True))
    held = Held(name, whole, dtype, full, runs)
    if held.local_shape != tuple(local.shape) and local.numel() + math.prod(held.local_shape) > 0:
      raise InvalidArgumentError(
        f"{what}: its local shape is {list(local.shape)}, but a tensor of {list(full)} with placements "
        f"{spelled(packed)} over a mesh {list(grid.shape)} would have {list(held.local_shape)} here"
      )
    return held


def _even(local: torch.Tensor, cuts: Sequence[Sequence[Any]]) -> tuple[int, ...]:
  """The full shape, from a shard that is as large as all others."""
  return tuple(int(n) * math.prod(s.size for s in here) for n, here in zip(local.shape, cuts, strict=True))


def local_names(layout: _core.Layout | None, rank: int) -> set[str]:
  """What a layout has on a rank."""
  if layout is None or rank not in layout.ranks:
    return set()
  return {tensor.name for tensor in layout.local(rank)}
