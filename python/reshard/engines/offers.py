# SPDX-License-Identifier: Apache-2.0
"""Groups of processes that a framework has started and that exchange metadata through it.

Frameworks of reinforcement learning ask each worker for metadata, give the metadata of all to all
(or to the process that drives them), and tell each worker its rank. A worker's metadata is its
`Offer`; `chosen()` says of all offers where the group meets, the same wherever it is called.
"""

from __future__ import annotations

import secrets
import socket
import uuid
from collections.abc import Sequence
from typing import Any

import reshard
from reshard import _rendezvous

__all__ = ["Offer", "chosen"]

_BETWEEN_HOSTS = ("ucx", "gloo")  # best first


class Offer:
  """What this process says of itself, and the socket at which it would serve the others.

  leads     True: it may become rank 0, so it listens at a free port from now on.
  transport that it asks for; "auto": shm within a host, else the best that all have.
  address   of this host, as the others reach it; None: found out.
  """

  def __init__(self, leads: bool, transport: str = "auto", address: str | None = None) -> None:
    self._listener: socket.socket | None = None
    self.metadata: dict[str, Any] = {
      "host": _rendezvous._host(),
      "transport": transport,
      "transports": [t for t in _BETWEEN_HOSTS if _available(t)],
    }
    if leads:
      self._listener = _rendezvous._listener("")
      self.metadata |= {
        "port": self._listener.getsockname()[1],
        "address": address or next(iter(_rendezvous._addresses(None)), "127.0.0.1"),
        "secret": secrets.token_hex(32),
        "job": f"reshard-{uuid.uuid4().hex[:16]}",
      }

  def join(self, place: dict[str, Any], rank: int, size: int, timeout: float) -> reshard.ProcessGroup:
    """Collective. The group of all whose offers were in `place`. Raises what reshard.join() does."""
    try:
      return reshard.join(
        place["url"],
        rank=rank,
        size=size,
        secret=place["secret"],
        job=place["job"],
        transport=place["transport"],
        timeout=timeout,
        listener=self._listener if rank == 0 else None,
      )
    finally:
      self.close()

  def close(self) -> None:
    """Stops listening. Idempotent."""
    listener, self._listener = self._listener, None
    if listener is not None:
      listener.close()


def chosen(offers: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Where the group of these processes meets: that of the first offer. Their order is their ranks.

  Whoever reads it may join this one group, as with the communicator's id of other back ends.

  Raises InvalidArgumentError if the first does not listen, or they ask for different transports;
  UnsupportedError if they are on several hosts and have no transport in common.
  """
  first = offers[0]
  if "port" not in first:
    raise reshard.InvalidArgumentError("the first of the metadata is not that of the trainer's rank 0")
  asked = {str(offer["transport"]) for offer in offers}
  if len(asked) > 1:
    raise reshard.InvalidArgumentError(f"processes ask for different transports: {sorted(asked)}")
  one_host = len({offer["host"] for offer in offers}) == 1
  transport = asked.pop()
  if transport == "auto":
    transport = "shm" if one_host else _common(offers)
  address = "127.0.0.1" if one_host else first["address"]
  host = f"[{address}]" if ":" in address else address
  return {
    "url": f"tcp://{host}:{first['port']}",
    "secret": first["secret"],
    "job": first["job"],
    "transport": transport,
  }


def _available(transport: str) -> bool:
  row = reshard.find_transport(transport)
  return row is not None and row.available


def _common(offers: Sequence[dict[str, Any]]) -> str:
  for name in _BETWEEN_HOSTS:
    if all(name in offer["transports"] for offer in offers):
      return name
  raise reshard.UnsupportedError(
    f"the processes are on several hosts, and have none of {', '.join(_BETWEEN_HOSTS)} in common"
  )
