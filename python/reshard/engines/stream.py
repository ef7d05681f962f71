# SPDX-License-Identifier: Apache-2.0
"""A model moves from trainers to workers that take tensors by name, in buckets of bounded memory.

Trainers give their parts of each tensor, in one order; workers get whole tensors, in that order.
Each bucket is a refit of its own from the trainers' layout to whole tensors on every worker. Its
session is made in the first update and used again as long as the bucket holds the same; what is in
it is described in a few bytes then. While a bucket moves, the next one is filled.

Buckets are where the tensors are: those of trainers on the GPU that has the tensors, those of workers
on the one that shall get them, if reshard can use it; else in memory that this host's processes share.
On a GPU everything is in the order of torch's current stream of the thread that gives or takes tensors.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import reshard
import torch
from reshard._collective import pack
from reshard._gpus import HOST, current_stream, usable_device
from reshard._session_cache import CachedSession, SessionCache
from reshard.engines.link import Link, TornError
from reshard.live._parts import Held, whole_runs
from reshard.live._ranks import FullTensors, unpacked
from reshard.tracing._types import safetensors_name, torch_dtype

__all__ = ["Named", "Piece", "Stream", "default_device", "even_pieces"]

T = TypeVar("T")
Named = tuple[str, torch.Tensor]
_ALIGNMENT = 64


@dataclass(frozen=True)
class Piece:
  """A trainer's part of one tensor.

  held   which part; its full shape may be flat.
  local  the elements, in any shape, on any device.
  shape  of the whole tensor, as the workers get it.
  """

  held: Held
  local: torch.Tensor
  shape: tuple[int, ...]


def even_pieces(tensors: Iterable[Named], rank: int, size: int) -> Iterator[Piece]:
  """The parts that a trainer sends of tensors that all `size` trainers have whole: equal shares."""
  for name, tensor in tensors:
    flat = tensor.detach().contiguous().view(-1)
    n = flat.numel()
    begin, end = rank * n // size, (rank + 1) * n // size
    held = Held(name, name, safetensors_name(tensor.dtype), (n,), (((begin, end),),))
    yield Piece(held, flat[begin:end], tuple(tensor.shape))


def default_device() -> torch.device:
  """The accelerator if there is one, else the host."""
  found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
  return found or torch.device("cpu")


@dataclass
class _Bucket:
  """Tensors that move together; on a trainer, and what was copied of them."""

  number: int
  table: list[list[Any]] = field(default_factory=list)  # [name, dtype, shape]
  held: list[Held] = field(default_factory=list)
  views: dict[str, torch.Tensor] = field(default_factory=dict)
  memory: int = 0  # which arena, so that another one gets another session
  stream: Any = None  # of the GPU that has it

  def said(self) -> dict[str, Any]:
    return {"table": self.table, "held": [h.pack() for h in self.held]}

  def key(self) -> str:
    return hashlib.blake2b(pack([self.said(), self.memory]), digest_size=16).hexdigest()


class _BucketSession(CachedSession):
  """The session of a bucket that all trainers fill as `keys` say, and its tensors as workers get them."""

  def __init__(
    self, link: Link, keys: list[str], session: reshard.Session | None, tensors: list[Named]
  ) -> None:
    super().__init__(link.group, session)
    self.keys, self.tensors = keys, tensors


class _Arena:
  """Memory of a GPU; or of the host, which trainers and workers share."""

  def __init__(self, nbytes: int, number: int, device: torch.device = HOST) -> None:
    self.number, self.device = number, device
    if device != HOST:
      self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=device)
      return
    model = reshard.Model.from_tensors("arena", {"bytes": ([nbytes], "uint8")})
    buffers = reshard.RankBuffers.allocate(reshard.layout("hf", model), [0], shared=True)
    self._memory = buffers.tensor(0, "bytes")
    self._bytes = torch.frombuffer(self._memory.raw(), dtype=torch.uint8)

  def __len__(self) -> int:
    return self._bytes.numel()

  def view(self, at: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """`nbytes` from `at` on, flat."""
    return self._bytes[at : at + nbytes].view(dtype)


class Stream:
  """One rank's end of the stream. All ranks make one, with equal arguments.

  link     between all of them. Owned.
  senders  ranks below are trainers, the others workers.
  bucket   bytes that move at a time; a larger tensor is a bucket of its own. A trainer holds its
           part of two buckets, a worker one. Where memory cannot be shared, each bucket's session has
           at most 64 MiB of staging memory besides.
  keep     True: a worker hands on nothing before all has arrived, and so keeps its old weights if
           the trainers fail. It then holds the whole model in its host's memory.
  device   where a worker gets tensors; None: on the host.
  """

  def __init__(
    self,
    link: Link,
    *,
    senders: int,
    bucket: int,
    keep: bool = False,
    device: torch.device | None = None,
  ) -> None:
    if bucket < 1:
      raise reshard.InvalidArgumentError(f"a bucket of {bucket} bytes")
    if not 0 < senders < link.size:
      raise reshard.InvalidArgumentError(f"{senders} trainers in a group of {link.size}")
    self.link = link
    self.senders = senders
    self.version = 0
    self._bucket, self._keep = bucket, keep
    self._device = device or HOST
    self._home = HOST if keep else usable_device(self._device)
    self._torch_stream: Any = None  # of a worker's caller, if it gets tensors on a GPU
    self._step: int | None = None
    self._sessions: SessionCache[_BucketSession] = SessionCache(None)  # by the number of the bucket
    self._arenas: dict[int, _Arena] = {}
    self._arena_count = 0
    self._moved = 0
    self._thread = ThreadPoolExecutor(1, "reshard-stream")

  @property
  def works(self) -> bool:
    """False once the group has ended; then make another."""
    return self.link.works

  def close(self) -> None:
    """Leaves the group. Idempotent."""
    self._sessions.close()
    self._thread.shutdown(wait=False, cancel_futures=True)
    self.link.close()

  async def send(self, pieces: Iterable[Piece], step: int | None = None) -> int:
    """A trainer's part of an update; returns the bytes of the model once every worker has them.

    pieces  in one order on all trainers; producing them may be collective over the trainers. They
            are copied before the next is asked for. All are asked for, whatever fails.
    step    equal on all ranks: the version; by default, and if it does not grow, the last plus one.

    Errors: what `pieces` raises; InvalidArgumentError if trainers' tensors differ; AbortedError and
    DeadlineError if a rank dies or stays away. All end the group on all ranks.
    """
    self._begin(step)
    given = iter(pieces)
    with self.link.ends_the_group():
      try:
        await self._send(given)
      except reshard.Error:
        # Producing them is collective: a trainer that still does must not wait for this one.
        with contextlib.suppress(Exception):
          for _ in given:
            pass
        raise
    return self._moved

  async def _send(self, pieces: Iterator[Piece]) -> None:
    pending: asyncio.Future[Any] | None = None
    for bucket in self._filled(pieces):
      if pending is not None:
        await pending
      pending = self._start(functools.partial(self._move, bucket))
    if pending is not None:
      await pending
    await self._start(functools.partial(self._move, None))

  async def receive(self, step: int | None = None) -> AsyncIterator[list[Named]]:
    """A worker's part of an update: whole tensors, in lists, which are the caller's.

    Errors: as of send(). TornError (an AbortedError) if some were handed on before.
    """
    self._begin(step)
    self._torch_stream = current_stream(self._device)
    given, kept = 0, list[list[Named]]()
    try:
      while True:
        batch = await self._start(self._next)
        if batch is None:
          break
        if self._keep:
          kept.append(batch)
          continue
        given += len(batch)
        yield batch
    except reshard.Error as error:
      raise self._failed(error, given) from error
    except BaseException as error:  # the caller went away
      self.link.abort(f"rank {self.link.rank}: {error or 'the worker took no more tensors'}")
      raise
    for batch in kept:
      yield self._copies(batch)

  def _failed(self, error: reshard.Error, given: int) -> reshard.Error:
    if given == 0:
      return type(error)(f"no update to version {self.version}, the old weights stay: {error}")
    return TornError(
      f"{given} tensors of version {self.version} have been handed on, and the others did not come: "
      f"the engine has weights of two versions until the next update: {error}"
    )

  def _begin(self, step: int | None) -> None:
    self._step = step
    self.version = max(self.version + 1, step or 0)
    self._moved = 0
    self._number = 0

  def _start(self, call: Callable[[], T]) -> asyncio.Future[T]:
    """Starts a call in the stream's thread, at once."""
    future = asyncio.get_running_loop().run_in_executor(self._thread, call)
    future.add_done_callback(lambda f: f.cancelled() or f.exception())  # it may not be waited for
    return future

  def _filled(self, pieces: Iterator[Piece]) -> Iterator[_Bucket]:
    """Copies what trainers give into the memory of buckets, one after the other."""
    number, at, total = 0, 0, 0
    bucket = _Bucket(number)
    for piece in pieces:
      size = math.prod(piece.shape) * piece.local.element_size()
      if bucket.table and total + _rounded(size) > self._bucket:
        yield bucket
        number, at, total = number + 1, 0, 0
        bucket = _Bucket(number)
      total += _rounded(size)
      held = piece.held
      bucket.table.append([held.name, held.dtype, list(piece.shape)])
      if size == 0:
        continue
      bucket.held.append(held)
      local = piece.local.detach()
      if local.numel() != math.prod(held.local_shape):
        raise reshard.InvalidArgumentError(
          f"'{held.name}': {local.numel()} elements, but this part has shape {list(held.local_shape)}"
        )
      # A bucket is where its first tensor is.
      device = self._arenas[number % 2].device if bucket.views else usable_device(local.device)
      arena = self._arena(number % 2, total, device)
      bucket.memory = arena.number
      bucket.stream = current_stream(arena.device)
      view = arena.view(at, local.nbytes, local.dtype).view(held.local_shape)
      view.copy_(local.reshape(held.local_shape))
      bucket.views[held.name] = view
      at += _rounded(local.nbytes)
    if bucket.table:
      yield bucket

  def _arena(self, slot: int, needed: int, device: torch.device) -> _Arena:
    """Memory of a slot: of one bucket, or of the one tensor that is larger."""
    arena = self._arenas.get(slot)
    if arena is None or len(arena) < needed or arena.device != device:
      self._arena_count += 1
      arena = self._arenas[slot] = _Arena(max(needed, self._bucket), self._arena_count, device)
    return arena

  def _next(self) -> list[Named] | None:
    """A worker's next bucket."""
    with _on(self._torch_stream):
      made = self._move(None)
      if made is None or self._keep:
        return None if made is None else made.tensors
      return self._copies(made.tensors)

  def _copies(self, tensors: list[Named]) -> list[Named]:
    return [(name, tensor.to(self._device, copy=True)) for name, tensor in tensors]

  def _move(self, bucket: _Bucket | None) -> _BucketSession | None:
    """Collective. Moves one bucket; None at the end of the update."""
    number = self._number
    said = self.link.gather({"step": self._step, "key": None if bucket is None else bucket.key()})
    with self.link.ends_the_group():
      keys = self._agreed(said)
      if keys is None:
        return None
      made = self._sessions.find(number)
      if made is None or made.keys != keys:
        self._sessions.drop(number)
        made = self._sessions.keep(number, self._make(bucket, keys, number))
      if made.session is not None:
        stream = self._torch_stream if bucket is None else bucket.stream
        self._moved += made.session.refit(self.version, stream=stream).bytes
    self._number = number + 1
    return made

  def _agreed(self, said: list[dict[str, Any]]) -> list[str] | None:
    """What the trainers' buckets are; None if no more come."""
    for rank, other in enumerate(said):
      if other["step"] != said[0]["step"]:
        raise reshard.InvalidArgumentError(
          f"rank {rank} updates to step {other['step']}, rank 0 to step {said[0]['step']}"
        )
    keys = [other["key"] for other in said[: self.senders]]
    ended = [rank for rank, key in enumerate(keys) if key is None]
    if 0 < len(ended) < len(keys):
      raise reshard.InvalidArgumentError(f"trainer {ended[0]} has fewer tensors than others")
    return None if ended else keys

  def _make(self, bucket: _Bucket | None, keys: list[str], number: int) -> _BucketSession:
    """Collective. The session of a bucket that is new or has changed."""
    messages = self.link.gather({} if bucket is None else bucket.said())[: self.senders]
    table = messages[0]["table"]
    for rank, other in enumerate(messages):
      for mine, its in zip(table, other["table"], strict=False):
        if mine != its:
          raise reshard.InvalidArgumentError(f"trainer 0 sends {mine}, but trainer {rank} sends {its}")
      if len(table) != len(other["table"]):
        raise reshard.InvalidArgumentError(f"trainers 0 and {rank} fill bucket {number} differently")
    source = self._source(messages)
    if source is None:  # nothing but empty tensors
      return _BucketSession(self.link, keys, None, _views(table, {}))
    target, wholes = self._target(source.model)
    if self.link.rank < self.senders:
      assert bucket is not None
      mine = bucket.views
      options: dict[str, Any] = {"threads": _threads(), "stream": bucket.stream}
      session = self.link.session(source, target, source_tensors=mine, **options)
      return _BucketSession(self.link, keys, session, [])
    views = self._allocated(wholes)
    options = {"threads": _threads(), "stream": self._torch_stream}
    session = self.link.session(source, target, target_tensors=views, **options)
    return _BucketSession(self.link, keys, session, _views(table, views))

  def _source(self, messages: list[dict[str, Any]]) -> reshard.Layout | None:
    ranks = unpacked([other["held"] for other in messages], 0)
    if not any(ranks.values()):
      return None
    return FullTensors(None).layout("trainer", ranks, "")

  def _target(self, model: reshard.Model) -> tuple[reshard.Layout, list[Held]]:
    """Every worker has every tensor whole."""
    wholes = []
    for tensor in model.tensors:
      shape = tuple(int(n) for n in tensor.shape)
      dtype = safetensors_name(torch_dtype(tensor.dtype.name.upper()))
      wholes.append(Held(tensor.name, tensor.name, dtype, shape, whole_runs(shape)))
    ranks = {rank: wholes for rank in range(self.senders, self.link.size)}
    return FullTensors(model).layout("workers", ranks, ""), wholes

  def _allocated(self, wholes: list[Held]) -> dict[str, torch.Tensor]:
    sizes = [math.prod(held.shape) * torch_dtype(held.dtype).itemsize for held in wholes]
    needed = sum(map(_rounded, sizes))
    arena = _Arena(needed, 0) if self._keep else self._arena(0, needed, self._home)
    views, at = {}, 0
    for held, size in zip(wholes, sizes, strict=True):
      views[held.name] = arena.view(at, size, torch_dtype(held.dtype)).view(held.shape)
      at += _rounded(size)
    return views


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
  """Makes a stream torch's current one."""
  return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def _views(table: list[list[Any]], views: dict[str, torch.Tensor]) -> list[Named]:
  """The tensors of a bucket in the shapes that workers get."""
  found: list[Named] = []
  for name, dtype, shape in table:
    view = views.get(name)
    view = torch.empty(shape, dtype=torch_dtype(dtype)) if view is None else view.view(shape)
    found.append((name, view))
  return found


def _threads() -> int:
  """Of one bucket's session: there may be many."""
  return min(8, os.cpu_count() or 1)


def _rounded(nbytes: int) -> int:
  return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
