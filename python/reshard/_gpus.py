# SPDX-License-Identifier: Apache-2.0
"""Which of torch's tensors a session uses where they are, on a GPU, and which must pass through the host."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from reshard import _core
from reshard._errors import UnsupportedError

_log = logging.getLogger("reshard.gpu")
_said: set[str] = set()

#: Transports that join GPUs, one of each rank, and nothing else.
_BETWEEN_GPUS = ("nccl", "nvshmem")

#: Where a side's tensors are when a session uses them.
HOST = torch.device("cpu")


def why_not(device: torch.device) -> str | None:
  """Why a session cannot use tensors on a device, or None."""
  if device.type == "cpu":
    return None
  if device.type != "cuda" or torch.version.hip is not None:
    return f"{device} is no NVIDIA GPU"
  return _core.why_no_gpu(device.index or 0)


def gpu_for(transport: str) -> int | None:
  """The GPU with which this rank joins a group over a transport: torch's current one for "nccl" and "nvshmem", None for
  others, which need none. Raises UnsupportedError, with the reason, where such a transport cannot be used.
  """
  if transport not in _BETWEEN_GPUS:
    return None
  found = _core.find_transport(transport)
  why = "it is not known" if found is None else "" if found.available else found.reason
  if not why and not torch.cuda.is_available():
    why = "torch sees no GPU"
  if why:
    raise UnsupportedError(f"transport '{transport}' cannot be used here: {why}; 'auto' takes the best one that can")
  return torch.cuda.current_device()


def _say(level: int, text: str) -> None:
  """Logs a text once in a process."""
  if text not in _said:
    _said.add(text)
    _log.log(level, text)


def usable_device(device: torch.device) -> torch.device:
  """The device itself if a session can use tensors there, else the host. The log says which."""
  if device.type == "cpu":
    return HOST
  why = why_not(device)
  if why is None:
    _say(logging.INFO, f"tensors of {device} are used on the GPU")
    return device
  _say(logging.WARNING, f"tensors of {device} pass through the host's memory: {why}")
  return HOST


def home_of(tensors: Iterable[torch.Tensor]) -> torch.device:
  """Where a session can use all of these tensors: the GPU that has them all, else the host.

  Those that are elsewhere, or not contiguous, need a copy there. Tensors without elements count for nothing.
  """
  devices = {tensor.device for tensor in tensors if tensor.numel() > 0}
  if len(devices) == 1:
    return usable_device(devices.pop())
  names = sorted(map(str, devices), reverse=True)
  if len(names) > 1:
    others = ", ".join(names[1:])
    _say(logging.WARNING, f"tensors of {names[0]} pass through the host's memory: others of this rank are on {others}")
  return HOST


def common_homes(*sides: Iterable[torch.Tensor]) -> list[torch.device]:
  """The home of each side of one rank: sides on two different GPUs have theirs on the host."""
  homes = [home_of(side) for side in sides]
  gpus = sorted({str(home) for home in homes if home != HOST})
  if len(gpus) < 2:
    return homes
  _say(logging.WARNING, f"tensors of {gpus[0]} and {gpus[1]} pass through the host's memory: one rank has both")
  return [HOST] * len(homes)


def is_at_home(tensor: torch.Tensor, home: torch.device) -> bool:
  """True if a session can use the memory itself."""
  return tensor.is_contiguous() and (tensor.device == home or tensor.numel() == 0)


def current_stream(*devices: torch.device) -> Any:
  """torch's current stream on the first of these that is a GPU, or None."""
  for device in devices:
    if device.type == "cuda":
      return torch.cuda.current_stream(device)
  return None
