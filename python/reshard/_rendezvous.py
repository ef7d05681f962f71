# SPDX-License-Identifier: Apache-2.0
"""Groups of processes that know each other already: a store or process group is the rendezvous."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from reshard._arguments import checked
from reshard._core import ProcessGroup, find_transport, join
from reshard._errors import AbortedError, DeadlineError, InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
  from torch.distributed import ProcessGroup as TorchGroup

_PREFIX = "reshard/"
_BETWEEN_HOSTS = ("ucx", "gloo")  # best first


class Store(Protocol):
  """A key-value store that all ranks reach: of torch.distributed, or anything with these methods.

  `get` may wait until the key exists, or raise or return None while it does not.
  """

  def set(self, key: str, value: str, /) -> object: ...
  def get(self, key: str, /) -> object: ...


class _Actor:
  """The store of a Ray actor with the methods `set` and `get`, and perhaps `wait`, through its handle."""

  def __init__(self, handle: Any) -> None:
    self._handle = handle
    ray = sys.modules.get("ray")
    self.host: str | None = ray.util.get_node_ip_address() if ray is not None and ray.is_initialized() else None
    self.wait = self._wait if hasattr(handle, "wait") else None

  def set(self, key: str, value: str) -> None:
    self._result(self._handle.set.remote(key, value))

  def get(self, key: str) -> object:
    return self._result(self._handle.get.remote(key))

  def _wait(self, keys: list[str], time: timedelta) -> None:
    self._result(self._handle.wait.remote(keys, time.total_seconds()))

  def _result(self, reference: Any) -> object:
    if hasattr(reference, "result"):
      return reference.result()
    return sys.modules["ray"].get(reference)


def _reachable(store: Any) -> Store:
  """The store, or that of an actor's handle, whose methods are called by `.remote()`."""
  method = getattr(store, "set", None)
  if method is None or not hasattr(store, "get"):
    raise InvalidArgumentError(
      f"from_store: a {type(store).__name__} is no store: it needs the methods set(key, value) and get(key)"
    )
  return _Actor(store) if hasattr(method, "remote") else store


def _text(value: object) -> str:
  return value.decode() if isinstance(value, bytes | bytearray) else str(value)


def _wait(store: Store, key: str, deadline: float, who: str) -> str:
  """The value of a key, once it is there."""
  while True:
    left = deadline - time.monotonic()
    if left <= 0:
      raise DeadlineError(f"join: {who} did not arrive before the deadline (no key '{key}' in the store)")
    wait = getattr(store, "wait", None)
    try:
      if wait is not None:  # in slices, so that signals are handled
        wait([key], timedelta(seconds=min(left, 0.05)))
      value = store.get(key)
    except (KeyError, RuntimeError, TimeoutError, LookupError):
      value = None
    if value is not None:
      return _text(value)
    if wait is None:
      time.sleep(min(left, 0.01))


def _listener(host: str) -> socket.socket:
  """A socket that listens at a free port: of this host only, or of all its addresses."""
  if host:
    return socket.create_server((host, 0))
  if socket.has_dualstack_ipv6():
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
  return socket.create_server(("", 0))


def _addresses(hint: str | None) -> list[str]:
  """Addresses at which other hosts may reach this one, best first."""
  found: list[str] = []
  for towards in (hint, "192.0.2.1"):  # a route is looked up; nothing is sent
    if not towards:
      continue
    try:
      with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        found.append(probe.getsockname()[0])
    except OSError:
      continue
  return [a for a in dict.fromkeys(found) if a != "0.0.0.0"]


def _host() -> str:
  """What is equal for two processes exactly if one reaches the other by the loopback address."""
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
      boot = file.read().strip()
    import os

    return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
  except OSError:
    return socket.gethostname()


@checked
def from_store(
  store: Any,
  *,
  rank: int,
  size: int,
  transport: str = "auto",
  job: str = "reshard",
  timeout: float = 60.0,
  address: str | None = None,
  interface: str = "",
  gpu: int | None = None,
) -> ProcessGroup:
  """Makes a group of processes that share a key-value store; returns once all ranks have called it.

  store      has set(key, value) and get(key), and perhaps wait(keys, timeout): a store of
             torch.distributed, a dict-like object of one's own, or the handle of a Ray actor with
             such methods. The address of rank 0 and a new random secret go through it, nothing else.
  rank, size of this process and of the group
  transport  as for join(); "auto": what rank 0 chooses, "shm" if all ranks are on one host, else the first
             of "ucx" and "gloo" that works there
  job        the name of the group; a new name for each group that is made over one store
  timeout    seconds until DeadlineError
  address    of rank 0, as the other ranks reach it; None: found out. On rank 0 only.
  interface, gpu  as for join()

  Whoever can read the store can join the group. Raises what join() raises, and UnsupportedError if
  "auto" finds no transport between hosts.
  """
  there = _reachable(store)
  deadline = time.monotonic() + timeout
  keys = f"{_PREFIX}{job}"
  if not 0 <= rank < size:
    raise InvalidArgumentError(f"join: rank {rank} in a group of {size}: must be 0 to {size - 1}")
  there.set(f"{keys}/host/{rank}", _host())

  def joined(place: dict[str, str], listener: socket.socket | None = None) -> ProcessGroup:
    return join(
      place["url"],
      rank=rank,
      size=size,
      secret=place["secret"],
      transport=place["transport"] if transport == "auto" else transport,
      job=job,
      timeout=max(deadline - time.monotonic(), 0.0),
      interface=interface,
      gpu=gpu,
      listener=listener,
    )

  if rank == 0:
    hosts = {_wait(there, f"{keys}/host/{r}", deadline, f"rank {r}") for r in range(size)}
    if transport == "auto":
      transport = _choose(there, keys, len(hosts))
    return _serve(there, keys, transport, len(hosts) == 1, address, joined)
  place = json.loads(_wait(there, f"{keys}/place", deadline, "rank 0"))
  if "error" in place:
    raise UnsupportedError(place["error"])
  return joined(place)


def _best(hosts: int) -> str:
  """The transport of a group whose ranks are on so many hosts."""
  if hosts == 1:
    return "shm"
  reasons = []
  for name in _BETWEEN_HOSTS:
    row = find_transport(name)
    if row is not None and row.available:
      return name
    reasons.append(f"{name}: {'not known' if row is None else row.reason}")
  raise UnsupportedError(f"join: the ranks are on {hosts} hosts, and no transport works between them ({'; '.join(reasons)})")


def _choose(store: Store, keys: str, hosts: int) -> str:
  """The transport of a group whose ranks are on so many hosts. If none works, the store tells the other ranks why."""
  try:
    return _best(hosts)
  except UnsupportedError as error:
    store.set(f"{keys}/place", json.dumps({"error": str(error)}))
    raise


def _serve(
  store: Store,
  keys: str,
  transport: str,
  one_host: bool,
  address: str | None,
  joined: Callable[[dict[str, str], socket.socket], ProcessGroup],
) -> ProcessGroup:
  """Rank 0: listens, says in the store where, and joins."""
  loopback = one_host and not address
  hint = address or getattr(store, "host", None)
  at = address or ("127.0.0.1" if loopback else next(iter(_addresses(hint)), "127.0.0.1"))
  secret = secrets.token_hex(32)
  with _listener(at if loopback else "") as listener:
    host = f"[{at}]" if ":" in at else at
    url = f"tcp://{host}:{listener.getsockname()[1]}"
    place = {"url": url, "secret": secret, "transport": transport}
    store.set(f"{keys}/place", json.dumps(place))
    return joined(place, listener)


@checked
def from_torch(
  process_group: TorchGroup | None = None,
  *,
  transport: str = "auto",
  job: str | None = None,
  timeout: float = 60.0,
  address: str | None = None,
  interface: str = "",
  gpu: int | None = None,
) -> ProcessGroup:
  """Makes a group of the processes of a torch.distributed process group. Collective.

  process_group  None: the default one, of init_process_group()
  transport      moves the weights: "shm" within a host, "ucx" or "gloo" between hosts; "auto" as for
                 from_store()

  Ranks are those in the process group. Its store carries the address of rank 0 and a random secret;
  no other server is needed, and the group lives on if the process group is destroyed. The other
  arguments are those of from_store(); None for `job` gives each call over one process group a name of
  its own. Raises InvalidArgumentError if torch.distributed has not been initialised.
  """
  import torch.distributed as dist

  if not dist.is_available() or not dist.is_initialized():
    raise InvalidArgumentError("from_torch: torch.distributed is not initialised; call init_process_group() first")
  group = process_group if process_group is not None else dist.group.WORLD
  outside: Any = dist.GroupMember.NON_GROUP_MEMBER  # declared as an int
  if group is None or group == outside:
    raise InvalidArgumentError("from_torch: this process does not belong to the process group")
  store = group.get_group_store() if hasattr(group, "get_group_store") else dist.distributed_c10d._world.pg_map[group][1]
  # Of the group itself: it may join processes of several worlds, with other ranks in each.
  rank, size = group.rank(), group.size()
  if job is None:
    job = f"torch-{store.add(f'{_PREFIX}calls/{rank}', 1)}"
  return from_store(
    store,
    rank=rank,
    size=size,
    transport=transport,
    job=job,
    timeout=timeout,
    address=address,
    interface=interface,
    gpu=gpu,
  )
