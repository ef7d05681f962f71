# SPDX-License-Identifier: Apache-2.0
"""The memory of shards: seen without being held, or staged where a session cannot use it."""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

#: What tells two pieces of memory apart, as long as the storage is known to live.
Identity = tuple[Any, ...]


def identity(tensor: torch.Tensor | None) -> Identity | None:
  """Equal for the same shard in the same memory."""
  if tensor is None:
    return None
  storage = tensor.untyped_storage()
  return (storage._cdata, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def usable(tensor: torch.Tensor) -> bool:
  """True if a session can use the memory itself."""
  return tensor.device.type == "cpu" and tensor.is_contiguous()


def alias(tensor: torch.Tensor) -> torch.Tensor:
  """The same memory, which does not keep it alive."""
  size = tensor.numel() * tensor.element_size()
  if size == 0:
    return torch.empty(tensor.shape, dtype=tensor.dtype)
  memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
  return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)


def overlapping(sources: Mapping[str, torch.Tensor], targets: Iterable[torch.Tensor]) -> set[str]:
  """The sources that share bytes with a target; all of them contiguous, in the memory of the host."""
  merged: list[list[int]] = []
  for begin, end in sorted(map(_range, targets)):
    if merged and begin <= merged[-1][1]:
      merged[-1][1] = max(end, merged[-1][1])
    elif begin < end:
      merged.append([begin, end])
  shared = set()
  for name, tensor in sources.items():
    begin, end = _range(tensor)
    at = bisect.bisect_right(merged, begin, key=lambda run: run[1])
    if begin < end and at < len(merged) and merged[at][0] < end:
      shared.add(name)
  return shared


def _range(tensor: torch.Tensor) -> tuple[int, int]:
  begin = tensor.data_ptr()
  return begin, begin + tensor.numel() * tensor.element_size()


class Shards:
  """The shards of one side on this rank: views of their memory, and copies of those that need one."""

  def __init__(self, tensors: dict[str, torch.Tensor], staged: set[str]) -> None:
    self.views: dict[str, torch.Tensor] = {}
    self._staged = [name for name in tensors if name in staged]
    weak: Any = StorageWeakRef  # has no types
    self._storages = [weak(t.untyped_storage()) for t in tensors.values()]
    for name, tensor in tensors.items():
      if name in staged:
        pinned = tensor.device.type == "cuda"
        self.views[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
      else:
        self.views[name] = alias(tensor)

  @property
  def alive(self) -> bool:
    """False once any of the tensors' memory is gone."""
    return not any(storage.expired() for storage in self._storages)

  def read(self, tensors: dict[str, torch.Tensor]) -> None:
    """Copies what is staged in."""
    for name in self._staged:
      self.views[name].copy_(tensors[name])

  def write(self, tensors: dict[str, torch.Tensor]) -> None:
    """Copies what is staged out."""
    for name in self._staged:
      tensors[name].copy_(self.views[name])


class Streams:
  """The streams of a call's CUDA tensors; nothing happens for those of the host."""

  def __init__(self, tensors: Iterable[torch.Tensor], streams: Iterable[Any]) -> None:
    devices = {t.device for t in tensors if t.device.type == "cuda"}
    self._streams: list[Any] = []
    if devices:
      given = [stream for stream in streams if stream is not None]
      current = [torch.cuda.current_stream(device) for device in devices]
      self._streams = list(dict.fromkeys(itertools.chain(given, current)))

  def synchronize(self) -> None:
    """Returns once the work that was given to them is done."""
    for stream in self._streams:
      stream.synchronize()
