# SPDX-License-Identifier: Apache-2.0
"""The invitation of a trainer, and the group that it leads to.

An engine gets an invitation twice. The first time each worker begins to join, in a thread: whoever
sends an invitation that leads nowhere, or that waits for ever, keeps neither the engine from its work
nor the trainer that it has from the engine. Once all ranks have joined, the trainer's rank 0 sends the
same again with `ready`; only then does a worker leave its former trainer.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import reshard
from reshard.engines.link import Link

if TYPE_CHECKING:
  from typing_extensions import Self  # of typing from Python 3.11 on

__all__ = ["MAX_DEADLINE", "PROTOCOL", "Invitation", "InvitedLink", "Invitations"]

#: Of what trainers and workers tell each other. Both sides must have the same.
PROTOCOL = 9

#: The longest deadline that a worker accepts, in seconds.
MAX_DEADLINE = 3600.0
# How long a call of the engine waits for a group that it begins to join, so that most errors are the
# call's, and for one that is said to be there.
_BEGIN, _READY = 1.0, 10.0
# At most so many groups that a worker is joining.
_MOST = 8
_MAX_RANKS = 1 << 20


@dataclass(kw_only=True)
class Invitation:
  """What a worker needs to join a trainer: the payload of `init_weight_transfer_engine`.

  Plain JSON, so that every control plane can carry it. It contains the secret of the group, as
  other backends' contain their communicator's id: whoever reads it may join this one group.
  """

  url: str
  job: str
  secret: str = field(repr=False)
  trainers: int
  engines: list[int]  # the number of workers of each
  transport: str
  deadline: float
  route: str
  in_place: bool
  verify: bool
  tensors: list[list[Any]] = field(repr=False)
  config: str = field(repr=False)
  adapters: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)  # by name: what the engine knows it by, and configs
  draft_config: str | None = field(default=None, repr=False)  # None: no draft model is updated
  wanted: list[int] | None = field(default=None, repr=False)  # the numbers of tensors to update; None: all
  engine: int = 0  # the number of the one that is invited
  protocol: int = PROTOCOL
  ready: bool = False  # all ranks have joined

  @property
  def workers(self) -> int:
    """Those of all engines."""
    return sum(self.engines)

  @property
  def ranks(self) -> range:
    """The ranks of the workers of the engine that is invited."""
    first = self.trainers + sum(self.engines[: self.engine])
    return range(first, first + self.engines[self.engine])

  def as_dict(self, ready: bool = False) -> dict[str, Any]:
    """For a client."""
    return dataclasses.asdict(self) | {"ready": ready}

  @classmethod
  def of(cls, said: Mapping[str, Any]) -> Self:
    """The invitation that a control plane has carried.

    Raises InvalidArgumentError, first for another protocol, whose payload may have other fields.
    """
    protocol = said.get("protocol")
    if protocol != PROTOCOL:
      raise reshard.InvalidArgumentError(
        f"the trainer's reshard speaks protocol {protocol!r}, this engine's {PROTOCOL}: install the same release"
      )
    try:
      made = cls(**said)
    except TypeError as error:
      raise reshard.InvalidArgumentError(f"an invitation of another release of reshard: {error}") from None
    made._check()
    return made

  def _check(self) -> None:
    if not isinstance(self.deadline, int | float) or not 0 < self.deadline <= MAX_DEADLINE:
      raise reshard.InvalidArgumentError(
        f"deadline {self.deadline!r}: must be above 0 and at most {MAX_DEADLINE:g} seconds"
      )
    if not isinstance(self.engines, list) or not self.engines:
      raise reshard.InvalidArgumentError(f"engines {self.engines!r}: must be a list of numbers of workers")
    for name, number in [("trainers", self.trainers), *(("workers", workers) for workers in self.engines)]:
      if not isinstance(number, int) or not 1 <= number <= _MAX_RANKS:
        raise reshard.InvalidArgumentError(f"{name} {number!r}: must be from 1 to {_MAX_RANKS}")
    if not isinstance(self.engine, int) or not 0 <= self.engine < len(self.engines):
      raise reshard.InvalidArgumentError(f"engine {self.engine!r}: must be the number of one of {len(self.engines)} engines")
    if self.wanted is not None and not isinstance(self.wanted, list):
      raise reshard.InvalidArgumentError(f"wanted {self.wanted!r}: must be a list of numbers, or null")
    count = len(self.tensors)
    for number in self.wanted or ():
      if not isinstance(number, int) or not 0 <= number < count:
        raise reshard.InvalidArgumentError(f"wanted {number!r}: must be the number of one of {count} tensors")


class InvitedLink(Link):
  """One rank's end: ranks 0 to trainers - 1 train, the others are workers. Collective.

  says  what this rank tells the others of itself; anything that JSON takes

  Attributes: `messages`, what each rank said, by rank.
  """

  def __init__(self, invitation: Invitation, rank: int, says: Any = None) -> None:
    group = reshard.join(
      invitation.url,
      rank=rank,
      size=invitation.trainers + invitation.workers,
      secret=invitation.secret,
      job=invitation.job,
      transport=invitation.transport,
      timeout=invitation.deadline,
    )
    super().__init__(group, invitation.deadline, invitation.verify)
    self.invitation = invitation
    try:
      self.messages = self.gather(says)
    except BaseException:
      self.close()
      raise


class _Joining:
  """A group that a worker is joining, in a thread of its own."""

  def __init__(self, invitation: Invitation, rank: int, says: Any) -> None:
    self._link: InvitedLink | None = None
    self._error: BaseException | None = None
    self._unwanted = False
    self._lock = threading.Lock()
    self._thread = threading.Thread(target=self._join, args=(invitation, rank, says), daemon=True)
    self._thread.start()

  def _join(self, invitation: Invitation, rank: int, says: Any) -> None:
    try:
      link = InvitedLink(invitation, rank, says)
    except BaseException as error:  # noqa: BLE001 - link() raises it
      self._error = error
      return
    with self._lock:
      if not self._unwanted:
        self._link = link
        return
    link.close()

  @property
  def is_over(self) -> bool:
    """True if no link will come of it, or none that works."""
    return not self._thread.is_alive() and (self._link is None or not self._link.works)

  def link(self, wait: float) -> InvitedLink | None:
    """The link, if it is there within `wait` seconds. Raises what joining raised."""
    self._thread.join(wait)
    if self._error is not None:
      raise self._error
    return self._link

  def drop(self) -> None:
    """Closes the link, now or when it is there."""
    with self._lock:
      self._unwanted = True
      link, self._link = self._link, None
    if link is not None:
      link.close()


class Invitations:
  """The groups that a worker has been invited to and not yet taken."""

  def __init__(self) -> None:
    self._joining: dict[str, _Joining] = {}

  def take(self, invitation: Invitation, rank: int, says: Any = None) -> InvitedLink | None:
    """Begins to join, or returns the link if the invitation says that all ranks are there.

    says  as of InvitedLink

    Raises InvalidArgumentError if nobody was invited so; what joining raised, if it fails at once.
    """
    if invitation.ready:
      joining = self._joining.pop(invitation.job, None)
      if joining is None:
        raise reshard.InvalidArgumentError("a trainer is ready that has not invited this worker")
      link = joining.link(_READY)
      if link is None:
        joining.drop()
        raise reshard.DeadlineError("a trainer is ready, but the group is not complete")
      return link
    for job in [job for job, joining in self._joining.items() if joining.is_over or job == invitation.job]:
      self._joining.pop(job).drop()
    if len(self._joining) >= _MOST:
      raise reshard.UnsupportedError(f"{_MOST} other trainers have invited this worker, and none has come")
    joining = self._joining[invitation.job] = _Joining(invitation, rank, says)
    try:
      joining.link(_BEGIN)
    except BaseException:
      del self._joining[invitation.job]
      raise
    return None

  def close(self) -> None:
    """Drops all of them."""
    while self._joining:
      self._joining.popitem()[1].drop()
