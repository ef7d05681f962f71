# SPDX-License-Identifier: Apache-2.0
"""The memory of shards: seen without being held, or staged where a session cannot use it."""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from reshard._errors import InvalidArgumentError
from reshard._gpus import HOST, common_homes, current_stream, is_at_home

#: What tells two pieces of memory apart, as long as the storage is known to live.
Identity = tuple[Any, ...]


def identity(tensor: torch.Tensor | None) -> Identity | None:
  """Equal for the same shard in the same memory."""
  if tensor is None:
    return None
  storage = tensor.untyped_storage()
  read = (tensor.is_conj(), tensor.is_neg())
  return (storage._cdata, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), read)


def check_memory(tensor: torch.Tensor, what: str) -> None:
  """Raises InvalidArgumentError unless the tensor's memory holds its elements, and all of them."""
  for is_view, word, resolve in (
    (tensor.is_conj(), "conjugated", "resolve_conj"),
    (tensor.is_neg(), "negated", "resolve_neg"),
  ):
    if is_view:
      raise InvalidArgumentError(
        f"{what}: is a {word} view: its memory holds other values; pass its {resolve}()"
      )
  if tensor.numel() == 0:
    return
  last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
  needs, has = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
  if needs > has:
    raise InvalidArgumentError(f"{what}: its storage was resized to {has} bytes, and it needs {needs}")


class _GpuMemory:
  """Bytes of a GPU that are not kept alive."""

  def __init__(self, address: int, nbytes: int) -> None:
    self.__cuda_array_interface__ = {
      "shape": (nbytes,),
      "typestr": "|u1",
      "data": (address, False),
      "version": 3,
    }


def alias(tensor: torch.Tensor) -> Any:
  """The same memory, which does not keep it alive."""
  size = tensor.numel() * tensor.element_size()
  if size == 0:
    return torch.empty(tensor.shape, dtype=tensor.dtype)
  if tensor.device.type == "cuda":
    return _GpuMemory(tensor.data_ptr(), size)
  memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
  return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)


def overlapping(sources: Mapping[str, torch.Tensor], targets: Iterable[torch.Tensor]) -> set[str]:
  """The sources that share bytes with a target; all of them contiguous."""
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
  """The shards of one side on this rank: views of their memory, and copies of those that need one.

  home    where a session uses them: a GPU or the host.
  staged  names of those that need a copy there, beside those that are elsewhere or have gaps.
  """

  def __init__(
    self, tensors: dict[str, torch.Tensor], home: torch.device, staged: Iterable[str] = ()
  ) -> None:
    self.home = home
    self.views: dict[str, Any] = {}
    away = {name for name, tensor in tensors.items() if not is_at_home(tensor, home)}.union(staged)
    self.staged = [name for name in tensors if name in away]
    weak: Any = StorageWeakRef  # has no types
    self._storages = [weak(t.untyped_storage()) for t in tensors.values()]
    for name, tensor in tensors.items():
      if name in away:
        pinned = home == HOST and tensor.device.type == "cuda"
        self.views[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device=home, pin_memory=pinned)
      else:
        self.views[name] = alias(tensor)

  @property
  def alive(self) -> bool:
    """False once any of the tensors' memory is gone."""
    return not any(storage.expired() for storage in self._storages)

  def read(self, tensors: dict[str, torch.Tensor]) -> None:
    """Copies what is staged in."""
    for name in self.staged:
      self.views[name].copy_(tensors[name])

  def write(self, tensors: dict[str, torch.Tensor]) -> None:
    """Copies what is staged out."""
    for name in self.staged:
      tensors[name].copy_(self.views[name])


class Streams:
  """The streams of a call's CUDA tensors; nothing happens for those of the host.

  current  the one on which a session uses tensors of a GPU; None: it uses none.
  """

  def __init__(self, sides: Iterable[Shards], streams: Iterable[Any], tensors: Iterable[torch.Tensor]) -> None:
    shards = list(sides)
    self.current = current_stream(*(side.home for side in shards))
    # Copies between a GPU and the host, and copies of results, must have ended before others use them.
    devices = {t.device for t in tensors if t.device.type == "cuda"}
    self._waits = bool(devices) and (self.current is None or any(side.staged for side in shards))
    given = [_stream(stream) for stream in streams if stream is not None] if devices else []
    here = [torch.cuda.current_stream(device) for device in devices]
    self._all = list(dict.fromkeys(itertools.chain(given, here)))

  def begin(self) -> None:
    """What follows comes after the work that the streams have: the host waits only if it copies."""
    if self.current is None:
      self._synchronize()
      return
    for stream in self._all:
      if stream != self.current:
        self.current.wait_stream(stream)

  def end(self) -> None:
    """Returns once results are there for every stream."""
    if self._waits:
      self._synchronize()

  def _synchronize(self) -> None:
    for stream in self._all:
      stream.synchronize()


def _stream(given: Any) -> Any:
  """A stream of torch, of the handle of one."""
  external: Any = torch.cuda.ExternalStream  # has no types
  return external(given) if isinstance(given, int) else given


def placed(sides: Sequence[dict[str, torch.Tensor]]) -> list[Shards]:
  """The shards of source and target. Sources that share memory with a target are copied first."""
  homes = common_homes(*(side.values() for side in sides))
  direct = [{n: t for n, t in of.items() if is_at_home(t, home)} for of, home in zip(sides, homes, strict=True)]
  shared = overlapping(direct[0], direct[1].values())
  return [Shards(sides[0], homes[0], shared), Shards(sides[1], homes[1])]
