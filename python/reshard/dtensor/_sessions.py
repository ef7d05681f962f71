# SPDX-License-Identifier: Apache-2.0
"""The sessions of a group, kept for calls that come again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

import reshard
from reshard import _core
from reshard._collective import gathered
from reshard._errors import InvalidArgumentError
from reshard._gpus import current_stream
from reshard._session_cache import CachedSession, SessionCache
from reshard.dtensor._memory import Shards, Streams, identity, placed
from reshard.dtensor._sides import Item, Reader, Side, layouts_of

Tensors = dict[str, torch.Tensor]
Verify = Literal["never", "always"]
MOST = 1024  # sessions of a group

_WHAT = "xferdtensor"


class _Transfers(CachedSession):
  """A session of the transfers of one call, and what of this rank it moves.

  number  of sessions that the group had made before; equal on all ranks
  """

  def __init__(
    self, group: _core.ProcessGroup, session: _core.Session, number: int, sides: Sequence[Shards]
  ) -> None:
    super().__init__(group, session)
    self.number = number
    self._sources, self._targets = sides

  @property
  def alive(self) -> bool:
    return super().alive and self._sources.alive and self._targets.alive

  def move(self, sources: Tensors, targets: Tensors, given: Sequence[Any]) -> None:
    tensors = [*sources.values(), *targets.values()]
    streams = Streams((self._sources, self._targets), given, tensors)
    streams.begin()
    self._sources.read(sources)
    self.refit(streams.current)
    self._targets.write(targets)
    streams.end()


class Sessions:
  """Of one group, on this rank. Collective calls are in the same order on all ranks."""

  def __init__(self, group: _core.ProcessGroup) -> None:
    self.group = group
    self._cache: SessionCache[_Transfers] = SessionCache(MOST)
    self._numbers = itertools.count()
    self.made = 0
    self.reused = 0

  def __len__(self) -> int:
    return len(self._cache)

  def move(
    self, items: Sequence[Item], ranks: Mapping[int, int] | None, verify: Verify, timeout: float
  ) -> None:
    """Moves all items at once. `ranks`: {global rank: rank in the group}, None if they are the same."""
    sides: list[tuple[Side, Side]] = []
    key: Any = None
    found: _Transfers | None = None

    def look() -> list[int]:
      nonlocal key, found
      reader = Reader(self.group.rank, self.group.size, ranks)
      sides.extend((reader.source(item), reader.target(item)) for item in items)
      key = (verify, timeout, *map(_key, sides))
      found = self._cache.find(key)
      return [len(items), -1 if found is None else found.number]

    answers = gathered(self.group, look, _WHAT, timeout)
    for rank, (count, _) in enumerate(answers):
      if count != answers[0][0]:
        raise InvalidArgumentError(f"{_WHAT}: {answers[0][0]} tensors on rank 0, but {count} on rank {rank}")
    names = _names(items)
    sources: Tensors = {}
    targets: Tensors = {}
    for name, pair in zip(names, sides, strict=True):
      for side, of in zip(pair, (sources, targets), strict=True):
        if side.tensor is not None:
          of[name] = side.tensor
    if found is not None and all(number == found.number for _, number in answers):
      self.reused += 1
    else:
      found = self._make(key, names, sides, (sources, targets), verify, timeout)
    try:
      found.move(sources, targets, [item.stream for item in items])
    except BaseException:
      self._cache.drop(key)
      raise

  def _make(
    self,
    key: Any,
    names: Sequence[str],
    sides: Sequence[tuple[Side, Side]],
    mine: tuple[Tensors, Tensors],
    verify: Verify,
    timeout: float,
  ) -> _Transfers:
    self._cache.drop(key)
    self._cache.drop_dead()
    said = gathered(self.group, lambda: [[s.say() for s in pair] for pair in sides], _WHAT, timeout)
    source, target = layouts_of(names, said)
    held = placed(mine)
    here = self.group.rank
    session = reshard.Session(
      self.group,
      source=source,
      source_tensors=held[0].views if here in source.ranks else None,
      target=target,
      target_tensors=held[1].views if here in target.ranks else None,
      verify=verify,
      timeout=timeout,
      stream=current_stream(*(side.home for side in held)),
    )
    self.made += 1
    return self._cache.keep(key, _Transfers(self.group, session, next(self._numbers), held))

  def close(self) -> None:
    """Closes all of them on this rank."""
    self._cache.close()


def _names(items: Sequence[Item]) -> list[str]:
  """One for each item; equal on all ranks if they are called alike."""
  return [item.name if len(items) == 1 else f"{item.name} {i}" for i, item in enumerate(items)]


def _key(pair: tuple[Side, Side]) -> Any:
  return tuple((identity(side.tensor), side.shape, side.grid, side.placements, side.own) for side in pair)


_sessions: dict[int, Sessions] = {}


def sessions_of(group: _core.ProcessGroup) -> Sessions:
  """The sessions of a group, which are kept while it lives."""
  for key, sessions in list(_sessions.items()):
    if sessions.group.closed:
      _sessions.pop(key, None)  # another thread may have done so
  found = _sessions.get(id(group))
  if found is None:
    found = _sessions[id(group)] = Sessions(group)
  return found


def close_sessions() -> None:
  """Closes all sessions that this module's calls keep. Each rank for itself; later calls make new ones."""
  while _sessions:
    _, sessions = _sessions.popitem()
    sessions.close()
