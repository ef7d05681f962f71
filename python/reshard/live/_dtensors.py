# SPDX-License-Identifier: Apache-2.0
"""Layouts from torch DTensors: reshard.of_dtensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import reshard
from reshard import _core
from reshard._arguments import checked
from reshard._collective import gathered
from reshard._names import Names, renamed
from reshard.live._parts import Held, whole_runs
from reshard.live._placements import held_at
from reshard.live._ranks import FullTensors, Ranks, unpacked
from reshard.live._second import known_names
from reshard.tracing._types import safetensors_name

if TYPE_CHECKING:
  from torch.distributed import ProcessGroup as TorchGroup

_HINT = "say what it is called with names=, or leave it out (None)"


@checked
def of_dtensors(
  tensors: Mapping[str, torch.Tensor],
  model: _core.Model | None = None,
  *,
  names: Names = None,
  group: TorchGroup | _core.ProcessGroup | None = None,
  gather: bool = True,
  offset: int = 0,
  name: str = "dtensors",
  timeout: float = 60.0,
) -> _core.Layout:
  """The layout in which ranks hold these tensors, from their DTensors' meshes and placements.

      source = reshard.of_dtensors(dict(module.named_parameters()))  # on every rank

  tensors  {name: tensor}: the parameters of an FSDP2, HSDP or tensor-parallel module on this rank.
           The names are those of the layout's local tensors. A tensor that is no DTensor is whole on
           this rank. Nothing is copied, and no values are read
  model    whose tensors these are. Names may be those of the checkpoint or of modules of
           transformers, where one tensor stacks the experts of a layer. None: a model of these
           tensors, with their full shapes and dtypes
  names    what the tensors are called in the model: a function of the name, or a dict of patterns
           such as {"module.*": "$1"}, in which "*" matches any characters, "#" a number, and "$1" is
           what the first of these matched; None leaves a tensor out. By default the same name,
           without what torch.compile and activation checkpointing add. A name that the model lacks
           is fine for a tensor that is one of the others' memory: the head of a tied model
  group    a process group of torch.distributed, by default that of all processes, or a
           reshard.ProcessGroup. Ranks of the layout are those of the group. All of them call; one
           that passes {} holds nothing, and is not in the layout
  gather   True: every rank says what it holds, in one all-gather of the group, so ranks may hold
           different names (pipeline stages) and meshes that others are not part of (a sub-mesh for
           each replica). False: no communication, and any rank may call alone. A mesh says where its
           tensors are on all of its ranks, so this needs meshes that all have the same ranks; those
           are the ranks of the layout, and `group` is not used
  offset   added to every rank
  name     of the layout, and of the model if None is given
  timeout  seconds until DeadlineError, if `group` is a reshard.ProcessGroup; torch has its own

  Placements are Replicate, Shard (as torch.chunk cuts: uneven shards are fine) and _StridedShard, as
  FSDP2 over tensor parallelism stores it.

  Raises UnsupportedError for partial sums and InvalidArgumentError for a local tensor of another
  shape than its placements say, both with the tensor's name; NotFoundError for a name that the model
  lacks; InvalidArgumentError without `gather` for meshes of different ranks. An error on one rank of
  the group is raised on all.
  """
  full = FullTensors(model, () if model is None else of_transformers(model))
  find = renamed(names) if model is None else known_names(tensors, renamed(names), full.__contains__)
  if not gather:
    ranks = _from_meshes(tensors, find, offset)
  elif group is None and not dist.is_initialized():
    ranks = {offset: list(_mine(tensors, find))}
  else:

    def describe() -> Any:
      return [held.pack() for held in _mine(tensors, find)] if tensors else None

    ranks = unpacked(gathered(group, describe, "of_dtensors", timeout), offset)
  return full.layout(name, ranks, _HINT)


def of_transformers(model: _core.Model) -> Iterator[_core.Layout]:
  """The modules of transformers, if the model has a config that says what they are."""
  for release in (5, 4):
    try:
      yield _core.layout(f"fsdp:shard=1,transformers={release}", model)
    except reshard.Error:
      return


def _local(tensor: torch.Tensor) -> torch.Tensor:
  """A DTensor's own memory."""
  local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
  return local.detach()


def _named(
  tensors: Mapping[str, Any], find: Callable[[str], str | None]
) -> Iterator[tuple[str, str, torch.Tensor]]:
  """(local name, name in the model, tensor), without those that are left out."""
  for name, tensor in tensors.items():
    if not isinstance(tensor, torch.Tensor):
      raise reshard.InvalidArgumentError(f"'{name}': a {type(tensor).__name__} is no tensor of torch")
    whole = find(name)
    if whole is not None:
      yield name, whole, tensor


def _held_at(name: str, whole: str, tensor: DTensor, at: list[int]) -> Held:
  placed = tensor.placements, tuple(tensor.device_mesh.shape)
  return held_at((name, whole), safetensors_name(tensor.dtype), tensor.shape, placed, at)


def _replicated(name: str, whole: str, tensor: torch.Tensor) -> Held:
  shape = tuple(int(n) for n in tensor.shape)
  return Held(name, whole, safetensors_name(tensor.dtype), shape, whole_runs(shape))


def _check_local(held: Held, tensor: DTensor) -> None:
  shape = tuple(int(n) for n in _local(tensor).shape)
  # A rank without a share may have any empty tensor.
  if shape != held.local_shape and math.prod(shape) + math.prod(held.local_shape) > 0:
    raise reshard.InvalidArgumentError(
      f"'{held.name}': its local tensor has shape {list(shape)}, but a DTensor of {list(held.shape)} "
      f"with placements {tensor.placements} over a mesh {list(tensor.device_mesh.shape)} would have "
      f"{list(held.local_shape)} here"
    )


def _mine(tensors: Mapping[str, torch.Tensor], find: Callable[[str], str | None]) -> Iterator[Held]:
  """What this rank holds."""
  for name, whole, tensor in _named(tensors, find):
    if not isinstance(tensor, DTensor):
      yield _replicated(name, whole, tensor)
      continue
    at = tensor.device_mesh.get_coordinate()
    if at is None:  # of a mesh without this rank
      continue
    held = _held_at(name, whole, tensor, list(at))
    _check_local(held, tensor)
    yield held


def _from_meshes(
  tensors: Mapping[str, torch.Tensor], find: Callable[[str], str | None], offset: int
) -> Ranks:
  """What all ranks of the meshes hold."""
  ranks: Ranks = {}
  plain: list[Held] = []
  first: tuple[str, set[int]] | None = None
  for name, whole, tensor in _named(tensors, find):
    if not isinstance(tensor, DTensor):
      plain.append(_replicated(name, whole, tensor))
      continue
    members = set(tensor.device_mesh.mesh.flatten().tolist())
    first = first or (name, members)
    if members != first[1]:
      raise reshard.InvalidArgumentError(
        f"'{name}' is on ranks {sorted(members)}, but '{first[0]}' on {sorted(first[1])}: what other "
        "ranks hold is not known without gather=True"
      )
    for held, holders in _over_mesh(name, whole, tensor):
      for rank in holders:
        ranks.setdefault(rank + offset, []).append(held)
    mine = tensor.device_mesh.get_coordinate()
    if mine is not None:
      _check_local(_held_at(name, whole, tensor, list(mine)), tensor)
  if first is None:
    raise reshard.InvalidArgumentError(
      "no tensor is a DTensor, so which ranks hold them is not known without gather=True"
    )
  for here in ranks.values():
    here += plain
  return ranks


def _over_mesh(name: str, whole: str, tensor: DTensor) -> Iterator[tuple[Held, list[int]]]:
  """What the ranks of a tensor's mesh hold. Ranks that hold the same come together."""
  mesh = tensor.device_mesh
  shape = [int(n) for n in mesh.shape]
  cuts = [type(p).__name__ != "Replicate" for p in tensor.placements]
  members: dict[tuple[int, ...], list[int]] = {}
  coordinates = itertools.product(*(range(n) for n in shape))
  for rank, at in zip(mesh.mesh.flatten().tolist(), coordinates, strict=True):
    key = tuple(k if cut else 0 for k, cut in zip(at, cuts, strict=True))
    members.setdefault(key, []).append(int(rank))
  for key, ranks in members.items():
    yield _held_at(name, whole, tensor, list(key)), ranks
