# SPDX-License-Identifier: Apache-2.0
"""The group of trainers and workers, and the session between them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import reshard
from reshard.vllm import manifest

__all__ = ["PROTOCOL", "Invitation", "Link"]

#: Of what trainers and workers tell each other. Both sides must have the same.
PROTOCOL = 2


@dataclass(kw_only=True)
class Invitation:
  """What a worker needs to join a trainer: the payload of `init_weight_transfer_engine`.

  Plain JSON, so that every control plane can carry it. It contains the secret of the group, as
  other backends' contain their communicator's id: whoever reads it may join this one group.
  """

  url: str
  job: str
  secret: str
  trainers: int
  workers: int
  transport: str
  deadline: float
  route: str
  in_place: bool
  verify: bool
  tensors: list[list[Any]]
  config: str
  protocol: int = PROTOCOL

  def as_dict(self) -> dict[str, Any]:
    """For a client."""
    return dataclasses.asdict(self)


class Link:
  """One rank's end: ranks 0 to trainers - 1 train, the others are workers.

  Collective. Errors on one rank end the group with the reason, so that the others fail at once.
  """

  def __init__(self, invitation: Invitation, rank: int) -> None:
    self.invitation = invitation
    self.rank = rank
    self._session: reshard.Session | None = None
    self._group = reshard.join(
      invitation.url,
      rank=rank,
      size=invitation.trainers + invitation.workers,
      secret=invitation.secret,
      job=invitation.job,
      transport=invitation.transport,
      timeout=invitation.deadline,
    )

  def gather(self, mine: Any) -> list[Any]:
    """Collective. What every rank gives, by rank."""
    with self.ends_the_group():
      data = self._group.all_gather(manifest.pack(mine), timeout=self.invitation.deadline)
      return [manifest.unpack(x) for x in data]

  def prepare(
    self,
    source: reshard.Layout,
    target: reshard.Layout,
    source_tensors: Mapping[str, Any] | None = None,
    target_tensors: Mapping[str, Any] | None = None,
    published: reshard.PublishedVersion | None = None,
    on_phase: Callable[[str], None] | None = None,
  ) -> None:
    """Collective. Plans, and shares memory.

    published  where a worker's version is noted; it outlives the session.
    """
    with self.ends_the_group():
      self._session = reshard.Session(
        self._group,
        source=source,
        source_tensors=source_tensors,
        target=target,
        target_tensors=target_tensors,
        published=published,
        on_phase=on_phase,
        timeout=self.invitation.deadline,
        verify="always" if self.invitation.verify else "never",
      )

  def refit(self, version: int) -> reshard.SessionReport:
    """Collective. Brings the workers' tensors to `version`."""
    assert self._session is not None
    return self._session.refit(version=version)

  def abort(self, reason: str) -> None:
    """Ends the group: every wait of every rank fails with `reason`. Any thread."""
    self._group.abort(reason)

  def close(self) -> None:
    """Leaves the group. Idempotent."""
    session, self._session = self._session, None
    if session is not None:
      session.close()
    self._group.close()

  @contextlib.contextmanager
  def ends_the_group(self) -> Iterator[None]:
    """An error inside becomes an error of every rank."""
    try:
      yield
    except BaseException as error:
      self._group.abort(f"rank {self.rank}: {error}")
      raise
