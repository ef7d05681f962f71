# SPDX-License-Identifier: Apache-2.0
"""Groups of processes that a Ray cluster started: an actor is the rendezvous."""

from __future__ import annotations

import importlib
from typing import Any

from reshard._arguments import checked
from reshard._core import ProcessGroup
from reshard._errors import InvalidArgumentError
from reshard._rendezvous import from_store


class _Store:
  """What the actor does. It travels to its process by value, and so needs no reshard there."""

  def __init__(self) -> None:
    import asyncio

    self._values: dict[str, str] = {}
    self._changed = asyncio.Condition()

  async def set(self, key: str, value: str) -> None:
    async with self._changed:
      self._values[key] = value
      self._changed.notify_all()

  async def get(self, key: str) -> str | None:
    return self._values.get(key)

  async def wait(self, keys: list[str], seconds: float) -> None:
    import asyncio

    async with self._changed:
      arrival = self._changed.wait_for(lambda: all(key in self._values for key in keys))
      try:
        await asyncio.wait_for(arrival, seconds)
      except TimeoutError:  # the caller asks for the keys anyway
        return

  async def add(self, key: str, number: int) -> int:
    self._values[key] = str(int(self._values.get(key, "0")) + number)
    return int(self._values[key])


def _actor(ray: Any, name: str, namespace: str | None) -> Any:
  """The handle of the actor of this name, which the first process makes."""
  by_value = type("ReshardStore", (), dict(vars(_Store)))
  by_value.__module__ = "__main__"
  options = {"name": name, "namespace": namespace, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 1000}
  return ray.remote(by_value).options(**options).remote()


@checked
def from_ray(
  actor: Any = "reshard",
  *,
  rank: int,
  size: int,
  namespace: str | None = None,
  transport: str = "auto",
  job: str | None = None,
  timeout: float = 60.0,
  address: str | None = None,
  interface: str = "",
  gpu: int | None = None,
) -> ProcessGroup:
  """Makes a group of Ray actors, tasks and drivers; returns once all ranks have called it.

  actor      the name of an actor that keeps the rendezvous: the first rank starts it, with no CPU of
             its own, and all others find it. Or the handle of an actor of your own with the methods
             set(key, value) and get(key) -> value, or None while there is none; wait(keys, seconds)
             saves polling.
  rank, size of this process and of the group: Ray has none, so you number your actors
  namespace  of Ray, for the name; None: that of this process
  job        the name of the group, a new one for each group over one actor. None: calls are counted,
             if the actor has add(key, number) -> sum, as the one that is started has

  The address of rank 0 and a new random secret go through the actor, nothing else. The group then has
  its own control plane, which learns of the death of a rank within milliseconds, and no longer needs
  the actor: a started one lives as long as the process that made it, as any actor of Ray does. The
  other arguments are those of from_store(); `address` is by default the one by which Ray knows the
  node.

  Whoever can call the actor can join the group. Raises InvalidArgumentError if Ray has not been
  initialised, what Ray raises if the actor is dead, and what join() raises.
  """
  ray: Any = importlib.import_module("ray")
  if not ray.is_initialized():
    raise InvalidArgumentError("from_ray: Ray is not initialised; call ray.init() first")
  handle = _actor(ray, actor, namespace) if isinstance(actor, str) else actor
  if job is None:
    counts = hasattr(handle, "add")
    job = f"ray-{ray.get(handle.add.remote(f'reshard/calls/{size}/{rank}', 1))}" if counts else "reshard"
  return from_store(
    handle,
    rank=rank,
    size=size,
    transport=transport,
    job=job,
    timeout=timeout,
    address=address,
    interface=interface,
    gpu=gpu,
  )
