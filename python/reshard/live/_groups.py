# SPDX-License-Identifier: Apache-2.0
"""One group of reshard for each process group of torch.distributed, for the adapters of frameworks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from reshard import _core
from reshard._collective import works
from reshard._gpus import gpu_for
from reshard._rendezvous import from_torch

if TYPE_CHECKING:
  from torch.distributed import ProcessGroup as TorchGroup

# By identity of the process group, transport and GPU, in the order in which they were made, which is that of all
# ranks. The reference says whether it is still that process group: a later one may have the identity of one that ended.
_groups: dict[tuple[int, str, int | None], tuple[weakref.ref[Any], _core.ProcessGroup]] = {}


def shared_group(
  process_group: TorchGroup | None = None, transport: str = "auto", timeout: float = 60.0
) -> _core.ProcessGroup:
  """The group of the processes of a torch process group: made by the first call, then kept. Collective.

  process_group  None: the default one
  transport      as for from_torch(); "nccl" and "nvshmem" join the current GPU of torch
  timeout        seconds until DeadlineError, if the group has to be made

  A group that was closed or aborted is made anew, which all of its ranks find out: an abort reaches
  them all. Raises what from_torch() raises, and UnsupportedError for "nccl" and "nvshmem" where they cannot be used.
  """
  of = _torch_group(process_group)
  gpu = gpu_for(transport)
  key = (id(of), transport, gpu)
  known = _groups.get(key)
  if known is not None and known[0]() is of and works(known[1]):
    return known[1]
  made = from_torch(of, transport=transport, timeout=timeout, gpu=gpu)
  _groups.pop(key, None)  # else the group would take the place of one that some ranks may not have had
  _groups[key] = (weakref.ref(of), made)
  return made


def first_group(process_group: TorchGroup | None = None) -> _core.ProcessGroup | None:
  """The first group that shared_group() made of a process group and that still works, over any transport; or None."""
  of = _torch_group(process_group)
  return next((g for key, (ref, g) in _groups.items() if key[0] == id(of) and ref() is of and works(g)), None)


def _torch_group(process_group: TorchGroup | None) -> TorchGroup | None:
  import torch.distributed as dist

  return process_group if process_group is not None else dist.group.WORLD if dist.is_initialized() else None


def close_groups() -> None:
  """Closes the groups that shared_group() made. Each rank for itself; close what uses them first."""
  while _groups:
    _, (_, group) = _groups.popitem()
    group.close()
