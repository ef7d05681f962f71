# SPDX-License-Identifier: Apache-2.0
"""A process of a trainer or an engine, as a member of a fleet."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from reshard import _core
from reshard._arguments import checked
from reshard._core import Layout, Model, PublishedVersion, Session, TargetVersion
from reshard._errors import AbortedError, DeadlineError, Error, InvalidArgumentError

if TYPE_CHECKING:
  from types import TracebackType

  from typing_extensions import Self  # of typing from Python 3.11 on

__all__ = ["Fleet", "FleetReport"]

_AGAIN = 0.05  # seconds between attempts to take a seat that the server has not noticed to be free


@dataclass(frozen=True)
class FleetReport:
  """The outcome of a trainer's refit().

  engines      the names of those that hold the version, all of their ranks
  left_behind  why others do not; "" if there are none. They catch up from an engine that does
  epoch        of the group of the last round
  rounds       that it took; 0 if no engine needed the version
  """

  version: int
  engines: list[str] = field(default_factory=list)
  left_behind: str = ""
  epoch: int = 0
  rounds: int = 0


class Fleet:
  """One process of a unit, the trainer or an engine, in a fleet.

  url, job, secret, secret_file  of the server
  model      whose tensors the layouts cut; the same on all members
  unit       the name of the trainer or engine, one for all of its ranks
  role       "trainer" or "engine"; a fleet has one trainer
  layout     of the unit alone, from rank 0 on, as reshard.layout() takes it
  tensors    of this rank, as Session takes them
  back_tensors  the second copy of an engine's, for buffering="doubled"
  rank, size    in the unit, and of it
  published  where an engine's rank publishes its version to readers; None: a PublishedVersion of its
             own. Readers of an engine with several ranks use `version` and `buffer`.
  transport, interface, gpu  as for reshard.join()
  timeout    seconds for each step: joining, making a group, each step of a refit
  options    of Session, equal on all members: buffering, verify, ignore, only, path, routes, ...

  One thread at a time, but `version`, `buffer` and `cancel()`: any thread.
  """

  @checked
  def __init__(
    self,
    url: str,
    *,
    model: Model,
    unit: str,
    role: Literal["trainer", "engine"],
    layout: str,
    tensors: Any,
    back_tensors: Any = None,
    rank: int = 0,
    size: int = 1,
    job: str = "fleet",
    secret: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    published: PublishedVersion | None = None,
    transport: str = "shm",
    interface: str = "",
    gpu: int | None = None,
    timeout: float = 60.0,
    **options: Any,
  ) -> None:
    self._model, self.unit, self.role, self._layout = model, unit, role, layout
    self._tensors, self._back = tensors, back_tensors
    self._rank, self._size = rank, size
    self._url, self._job, self._secret, self._secret_file = url, job, secret, secret_file
    self._transport, self._interface, self._gpu = transport, interface, gpu
    self._timeout, self._options = timeout, options
    self._doubled = options.get("buffering") == "doubled"
    self._published = published if published is not None else PublishedVersion()
    self._confirmed: TargetVersion = self._published.target_version()
    self._layouts: dict[str, Layout] = {}
    self._group: _core.ProcessGroup | None = None
    self._session: Session | None = None
    self._epoch = 0
    self._waits = False  # the server knows that this engine does.
    self._member: _core.FleetMember | None = None
    self._closed = False
    #: Why this rank's part of a refit failed, the last time that one did.
    self.error = ""
    ranks = len(self._layout_of(layout).ranks)
    if ranks != size:
      raise InvalidArgumentError(f"fleet: layout {layout} has {ranks} ranks, and size is {size}")
    self._join(time.monotonic() + timeout)

  @property
  def version(self) -> int:
    """The version that this engine's unit holds, all of its ranks; -1 if none. Any thread."""
    return self._kept()

  @property
  def buffer(self) -> int:
    """The copy to read it from: 0 `tensors`, 1 `back_tensors`. Any thread."""
    return self._confirmed.buffer

  @checked
  def refit(self, version: int, *, engines: int = 0) -> FleetReport:
    """The trainer's: brings `version`, which its tensors hold, to all engines. All of its ranks call it.

    Returns once each engine that was there and ready has it, or has died, or could not take it; an
    engine that came meanwhile is served by others. The tensors must not change until then.

    engines  waits until so many are there, at most the server's timeout

    Raises InvalidArgumentError on an engine, and for a version that is not above every engine's;
    AbortedError if a rank of the trainer is lost, which may come again and call this anew, or the server
    does not come back; DeadlineError if ranks of the trainer do not call it.
    """
    if self.role != "trainer":
      raise InvalidArgumentError("refit: only the trainer publishes versions; an engine calls receive()")
    rounds = 0
    self._tell(lambda member: member.publish(version, engines))
    while True:
      action = self._next(None)
      if action is None:  # The connection was lost, and made anew.
        self._tell(lambda member: member.publish(version, engines))
      elif action.kind == "order":
        rounds += 1
        self._take_part(action)
      elif action.kind == "release":
        return FleetReport(version, list(action.holders), action.text, self._epoch, rounds)
      elif action.kind == "reject":
        kinds = {"aborted": AbortedError, "deadline": DeadlineError}
        raise kinds.get(action.code, InvalidArgumentError)(f"refit: {action.text}")

  @checked
  def receive(self, *, timeout: float | None = None) -> int | None:
    """An engine's: takes part in refits until its unit holds a newer version, which it returns. All of its ranks call it.

    While it waits, the engine is also a source for others that are behind. With buffering="doubled" the
    version that it held stays whole, and readers may read it, until it is called again.

    timeout  seconds until it returns None; None: waits for ever. Call it again soon: the server takes an
             engine that has called it once to be there until it has a new version.

    Raises InvalidArgumentError on the trainer; AbortedError if the server does not come back.
    """
    if self.role != "engine":
      raise InvalidArgumentError("receive: only an engine takes versions; the trainer calls refit()")
    end = None if timeout is None else time.monotonic() + timeout
    while True:
      if not self._waits:
        self._tell(lambda member: member.ready())
        self._waits = True
      action = self._next(end)
      if action is None:
        if self._waits:
          return None
      elif action.kind == "order":
        self._take_part(action)
      elif action.kind == "confirm":
        self._waits = False
        self._confirmed = self._published.target_version()
        return int(action.version)

  def cancel(self) -> None:
    """Ends waits of this object with AbortedError, and its membership. Any thread."""
    self._closed = True
    member, group = self._member, self._group
    if group is not None and not group.closed:
      group.abort("the member leaves the fleet")
    if member is not None:
      member.cancel()

  def close(self) -> None:
    """Leaves the fleet; the weights stay. Idempotent."""
    self._closed = True
    self._leave_group()
    self._member = None

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
    self.close()

  def __repr__(self) -> str:
    return f"<Fleet: rank {self._rank} of {self._size} of {self.role} '{self.unit}', epoch {self._epoch}>"

  def _layout_of(self, text: str) -> Layout:
    if text not in self._layouts:
      self._layouts[text] = _core.layout(text, self._model)
    return self._layouts[text]

  def _kept(self) -> int:
    """The version that this rank holds if its unit does not get another."""
    told = self._confirmed
    whole = told.whole and (self._doubled or self._published.target_version() == told)
    return int(told.version) if whole else -1

  def _join(self, end: float) -> None:
    """Becomes a member, perhaps again. A seat may be taken until the server has noticed that it is free."""
    self._waits = False
    self._leave_group()
    taken: InvalidArgumentError | None = None
    while True:
      try:
        self._member = _core.FleetMember(
          self._url,
          job=self._job,
          secret=self._secret,
          secret_file=self._secret_file,
          unit=self.unit,
          trains=self.role == "trainer",
          rank=self._rank,
          size=self._size,
          layout=self._layout,
          version=self._kept() if self.role == "engine" else -1,
          timeout=max(end - time.monotonic(), 0.0),
        )
        return
      except InvalidArgumentError as error:
        if "is taken" not in str(error) or time.monotonic() >= end:
          raise
        taken = error
      except DeadlineError:
        if taken is not None:
          raise taken from None
        raise
      time.sleep(_AGAIN)

  def _tell(self, call: Any) -> None:
    """Sends to the server; if the connection is lost, once more over another."""
    if self._member is None or self._closed:
      raise AbortedError("the fleet is closed")
    try:
      call(self._member)
    except AbortedError:
      self._rejoin()
      call(self._member)

  def _rejoin(self) -> None:
    if self._closed:
      raise AbortedError("the fleet is closed")
    try:
      self._join(time.monotonic() + self._timeout)
    except DeadlineError as error:
      raise AbortedError(f"the server of the fleet is lost: {error}") from error

  def _next(self, end: float | None) -> _core.FleetAction | None:
    """The next action; None at the end, and if the connection was made anew."""
    assert self._member is not None
    try:
      return self._member.next(None if end is None else max(end - time.monotonic(), 0.0))
    except AbortedError:
      self._rejoin()
      return None

  def _take_part(self, order: _core.FleetAction) -> None:
    """This rank's part of a round, and its report."""
    assert self._member is not None
    is_source = order.participants[0].unit == self.unit
    has, why = False, ""
    if not is_source:
      self._give_up(order.version)
    try:
      self._session_for(order).refit(order.version)
      has = True
    except Exception as error:  # noqa: BLE001 - the others are told, and go on
      self.error = why = str(error) or type(error).__name__
      self._leave_group()
    except BaseException:
      self.close()  # The server tells the others.
      raise
    with contextlib.suppress(AbortedError):  # next() finds out.
      self._member.report(order.round, has, self._kept(), why)

  def _give_up(self, version: int) -> None:
    """Before the target is written: a version that was not confirmed, or that is to be taken again."""
    told = self._confirmed
    if told.whole and told.version >= version:
      self._published.tear()
      self._confirmed = self._published.target_version()
    elif self._published.target_version() != told:
      if self._doubled:
        self._published.take_back(told)
      else:
        self._published.tear()

  def _session_for(self, order: _core.FleetAction) -> Session:
    if self._session is not None and self._group is not None and self._epoch == order.epoch:
      return self._session
    self._leave_group()
    assert self._member is not None
    self._epoch = order.epoch
    layouts = [_core.move_layout(self._layout_of(p.layout), p.first) for p in order.participants]
    mine = [p.unit == self.unit for p in order.participants[1:]]
    is_source = order.participants[0].unit == self.unit
    self._group = self._member.make_group(
      order, transport=self._transport, timeout=self._timeout, interface=self._interface, gpu=self._gpu
    )
    held = self._back if self._confirmed.buffer == 1 else self._tensors
    self._session = Session(
      self._group,
      source=layouts[0],
      target=layouts[1:],
      source_tensors=held if is_source else None,
      target_tensors=[self._tensors if own else None for own in mine],
      back_tensors=[self._back if own else None for own in mine],
      published=None if is_source else self._published,
      timeout=self._timeout,
      **self._options,
    )
    return self._session

  def _leave_group(self) -> None:
    session, self._session = self._session, None
    group, self._group = self._group, None
    for each in (session, group):
      if each is not None:
        with contextlib.suppress(Error):
          each.close()
