# SPDX-License-Identifier: Apache-2.0
"""The group of trainers and an engine's workers, and the session between them.

`offers` makes a group of processes that a framework has started; `invitation` one that workers join
by the address of a trainer; `stream` moves a model over it in buckets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import reshard
from reshard._collective import pack, unpack, works

__all__ = ["Link", "TornError"]


class TornError(reshard.AbortedError):
  """The engine has parts of two versions, until the next update is complete."""


class Link:
  """One rank's end: the ranks below some number train, the others are an engine's workers.

  Collective. Errors on one rank end the group with the reason, so that the others fail at once.

  group     of all of them. Owned: close() closes it.
  deadline  seconds for each step.
  verify    compare fingerprints of what was sent and what arrived, before it is used.
  """

  def __init__(self, group: reshard.ProcessGroup, deadline: float, verify: bool = False) -> None:
    self.rank = group.rank
    self.size = group.size
    self.deadline = deadline
    self._verify = verify
    self.group = group
    self._session: reshard.Session | None = None
    self._pending: tuple[int, reshard.PendingRefit] | None = None

  def gather(self, mine: Any) -> list[Any]:
    """Collective. What each rank passed, by rank. `mine` is anything that JSON takes."""
    with self.ends_the_group():
      data = self.group.all_gather(pack(mine), timeout=self.deadline)
      return [unpack(x) for x in data]

  def session(
    self,
    source: reshard.Layout,
    target: reshard.Layout | Sequence[reshard.Layout],
    source_tensors: Mapping[str, Any] | None = None,
    target_tensors: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    published: reshard.PublishedVersion | None = None,
    on_phase: Callable[[str], None] | None = None,
    threads: int = 0,
    stream: Any = None,
    snapshot: bool = False,
  ) -> reshard.Session:
    """Collective. Plans, and shares memory. The caller owns the session; prepare() keeps its own.

    target, target_tensors, stream, snapshot  as for reshard.Session.
    """
    with self.ends_the_group():
      return reshard.Session(
        self.group,
        source=source,
        source_tensors=source_tensors,
        target=target,
        target_tensors=target_tensors,
        published=published,
        on_phase=on_phase,
        threads=threads,
        stream=stream,
        snapshot=snapshot,
        timeout=self.deadline,
        verify="always" if self._verify else "never",
      )

  def prepare(
    self,
    source: reshard.Layout,
    target: reshard.Layout | Sequence[reshard.Layout],
    source_tensors: Mapping[str, Any] | None = None,
    target_tensors: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    published: reshard.PublishedVersion | None = None,
    on_phase: Callable[[str], None] | None = None,
    snapshot: bool = False,
  ) -> None:
    """Collective. Makes the session that refit() uses.

    published  where a worker's version is noted; it outlives the session.
    """
    self._session = self.session(source, target, source_tensors, target_tensors, published, on_phase, snapshot=snapshot)

  def refit(self, version: int, stream: Any = None) -> reshard.SessionReport:
    """Collective. Brings the workers' tensors to `version`; `stream` as for Session.refit().

    If start() was called, waits for the end of that refit instead. Raises InvalidArgumentError if it is of another version.
    """
    assert self._session is not None
    pending, self._pending = self._pending, None
    if pending is None:
      return self._session.refit(version=version, stream=stream)
    if pending[0] != version:
      with self.ends_the_group():
        raise reshard.InvalidArgumentError(f"version {version}: that of the update in the background is {pending[0]}")
    return pending[1].result()

  def start(self, version: int, stream: Any = None) -> reshard.PendingRefit:
    """Collective. Begins a refit in the background. Nothing else may be called before the refit() that ends it."""
    assert self._session is not None
    pending = self._session.refit_async(version, stream=stream)
    self._pending = (version, pending)
    return pending

  @property
  def works(self) -> bool:
    """False once the group has ended: closed, aborted, or a rank has died."""
    return works(self.group)

  def abort(self, reason: str) -> None:
    """Ends the group: every wait of every rank fails with `reason`. Any thread."""
    self.group.abort(reason)

  def close(self) -> None:
    """Leaves the group. Idempotent."""
    session, self._session = self._session, None
    pending, self._pending = self._pending, None
    if pending is not None and not pending[1].done():
      self.group.abort(f"rank {self.rank} left during an update in the background")
      pending[1].wait()
    if session is not None:
      session.close()
    self.group.close()

  @contextlib.contextmanager
  def ends_the_group(self) -> Iterator[None]:
    """An error inside becomes an error of every rank."""
    try:
      yield
    except BaseException as error:
      self.group.abort(f"rank {self.rank}: {error or type(error).__name__}")
      raise
