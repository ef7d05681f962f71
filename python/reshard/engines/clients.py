# SPDX-License-Identifier: Apache-2.0
"""Several engines as what a trainer needs of one."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Clients", "world_size"]


def world_size(client: Any) -> int:
  """The number of an engine's workers. Raises ValueError if the client cannot tell."""
  found = getattr(client, "get_world_size", None)
  if found is None:
    raise ValueError(f"pass workers=: the client {client!r} has no get_world_size()")
  return int(found())


class Clients:
  """The clients of several engines, as one: each call goes to all of them at the same time.

  A call returns when all engines have answered, and raises the first error at once, so that the trainer can end the group
  for which the others wait. Calls of one engine never overlap. It has the methods that all clients have.

  clients  of one engine each. Borrowed.
  """

  def __init__(self, clients: Sequence[Any]) -> None:
    if len(clients) < 2:  # noqa: PLR2004
      raise ValueError(f"client= is a list of {len(clients)}: pass the client itself, or several")
    self._clients = list(clients)
    self._threads = [ThreadPoolExecutor(1, "reshard-client") for _ in clients]

  def __len__(self) -> int:
    return len(self._clients)

  def __repr__(self) -> str:
    return f"Clients({self._clients!r})"

  def sizes(self) -> list[int]:
    """The number of workers of each engine."""
    return [world_size(client) for client in self._clients]

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Invites the workers of each engine, by its number."""
    self._all(lambda engine, client: client.init_weight_transfer_engine(init_info | {"engine": engine}))

  def leave(self, job: str) -> None:
    """Has the workers of those engines leave the trainer that can be told to."""
    self._all(lambda _, client: client.leave(job) if hasattr(client, "leave") else None)

  def __getattr__(self, name: str) -> Callable[..., None]:
    if name.startswith("_") or not all(hasattr(client, name) for client in self._clients):
      raise AttributeError(f"not all of {self._clients!r} have {name}")
    return lambda *arguments: self._all(lambda _, client: getattr(client, name)(*arguments))

  def _all(self, call: Callable[[int, Any], Any]) -> None:
    """Calls it with the number and the client of each engine."""
    numbered = enumerate(zip(self._threads, self._clients, strict=True))
    pending: list[Future[Any]] = [thread.submit(call, i, client) for i, (thread, client) in numbered]
    done, _ = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_EXCEPTION)
    for answer in pending:
      if answer in done:
        answer.result()
