# SPDX-License-Identifier: Apache-2.0
"""The invitation of a trainer, and the group that it leads to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import reshard
from reshard.engines.link import Link

__all__ = ["PROTOCOL", "Invitation", "InvitedLink"]

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


class InvitedLink(Link):
  """One rank's end: ranks 0 to trainers - 1 train, the others are workers. Collective."""

  def __init__(self, invitation: Invitation, rank: int) -> None:
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
