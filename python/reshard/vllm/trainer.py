# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a live update. Does not import vLLM."""

from __future__ import annotations

import os
import queue
import secrets
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import reshard
from reshard._collective import gathered
from reshard._link import TornError
from reshard.vllm import manifest
from reshard.vllm.clients import Client
from reshard.vllm.link import Invitation, Link
from reshard.vllm.quantisation import Quantisation

__all__ = ["TornError", "Trainer"]

T = TypeVar("T")


class Trainer:
  """Updates the weights of a running vLLM engine from tensors in any layout.

  Every rank of the trainer makes one, with equal arguments but for `rank`, `tensors` and `client`,
  and calls `update()` after a training step. The ranks may hold the weights in any layout:
  "megatron:...", "fsdp:...", "hf", DTensors, a layout of one's own. A refit moves each byte once,
  from the rank that has it to the workers that lack it; no rank gathers whole tensors.

  Collective, with the engine's workers. The engine must have been started with
  `--weight-transfer-config '{"backend": "reshard"}'`.

  layout      of the trainer, over the ranks [0, size).
  tensors     this rank's local tensors, by the layout's names. Their addresses must not change.
  client      of rank 0: HttpClient, LocalClient, or one of vLLM's own. None on other ranks.
  rank, size  of this process among the trainer's.
  url         where the group meets (see `reshard.join`): "tcp://HOST:PORT" of a port that is free
              on rank 0's host, or "file:///FOLDER" that all can access; by default a folder of this
              host.
  job         a name that is new for each attempt; rank 0 makes one by default.
  secret      of 16 to 4096 characters; rank 0 makes one by default.
  transport   "shm" within a host; see `reshard.join`.
  workers     of the engine, of all data-parallel replicas; by default the client is asked.
  route       how a worker takes its weights: "local" (its own parts only, as its loader would leave
              them), "checkpoint" (all tensors, through `load_weights`) or "auto" (local if its
              layout can be found out, else checkpoint).
  in_place    write straight into parameters whose storage is the kernels' own, without a second
              copy. A trainer that dies in the middle of an update then leaves a torn engine, which
              says so and refuses to run until the next update. By default the old weights stay
              until all of the new ones have arrived.
  verify      compare fingerprints of what was sent and what arrived, before it is used.
  pause       "wait", "abort" or "keep": pause the server around each update and clear its cache (a
              client with `pause()` and `resume()`). None: generation goes on between the steps, as
              with vLLM's own backends.
  deadline    seconds for joining, and for the refit of an update.
  on_phase    called when this rank enters a phase of an update: "begin", "transfer", "check",
              "commit", "committed". An exception ends the update on all ranks.

  Options are equal on all ranks. Those that rank 0 makes reach the others through the default group
  of torch.distributed, which must have the same ranks; without one, all ranks must be given them.

  Errors: ValueError for arguments; DeadlineError and AbortedError if a rank is missing or dies;
  TornError (an AbortedError) if a worker could not load what had arrived;
  UnsupportedError if a worker cannot take the model; RuntimeError of the client.
  """

  def __init__(
    self,
    layout: reshard.Layout,
    tensors: Mapping[str, Any],
    *,
    client: Client | None = None,
    rank: int = 0,
    size: int = 1,
    url: str | None = None,
    job: str | None = None,
    secret: str | None = None,
    transport: str = "shm",
    workers: int | None = None,
    route: str = "auto",
    in_place: bool = False,
    verify: bool = False,
    pause: str | None = None,
    deadline: float = 120.0,
    on_phase: Callable[[str], None] | None = None,
  ) -> None:
    if (client is None) != (rank != 0):
      raise ValueError("rank 0 of the trainer, and no other, has the client")
    if route not in ("auto", "local", "checkpoint"):
      raise ValueError(f"route '{route}': one of auto, local, checkpoint")
    self.rank, self.size = rank, size
    self.version = 0
    self._client = client
    self._pause = pause
    self._on_phase = on_phase
    self._tensors = dict(tensors)
    given = {"url": url, "job": job, "secret": secret, "workers": workers}
    common = _agreed(client, size, given)
    self._invitation = Invitation(
      url=common["url"],
      job=common["job"],
      secret=common["secret"],
      trainers=size,
      workers=common["workers"],
      transport=transport,
      deadline=deadline,
      route=route,
      in_place=in_place,
      verify=verify,
      tensors=manifest.table_of(layout.model),
      config=_config_of(layout.model),
    )
    self._link = self._join()
    try:
      self._prepare(layout)
    except BaseException:
      self.close()
      raise

  def _join(self) -> Link:
    """Rank 0 asks the workers to join while it joins itself: each waits for the other."""
    if self._client is None:
      return Link(self._invitation, self.rank)
    client, payload = self._client, self._invitation.as_dict()
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()
    self._call = _Call(lambda: client.init_weight_transfer_engine(payload), ended.put)
    joining = _Call(lambda: Link(self._invitation, self.rank), ended.put)
    if ended.get() is self._call:
      self._call.result()  # an engine that refuses ends the wait for it
    try:
      return joining.result()
    except BaseException as error:
      self._call.raise_instead(error)
      raise

  def _prepare(self, layout: reshard.Layout) -> None:
    link, trainers = self._link, self._invitation.trainers
    try:
      link.gather({})  # the workers agree on their route
      quant = Quantisation.of_layout(layout)
      holds = manifest.describe(layout.values, self.rank)
      mine = {"holds": holds, "quant": quant and quant.as_dict(), "version": 0}
      told = link.gather(mine)
      model = manifest.model_of(self._invitation.tensors)
      source, target = layouts_of(model, told, trainers)
      _check_same(layout, source, self.rank)
      link.prepare(source, target, source_tensors=self._tensors, on_phase=self._on_phase)
      workers = told[trainers:]
      self.version = max(int(x["version"]) for x in workers)
    except BaseException as error:
      if self._client is not None:
        self._call.raise_instead(error)
      raise
    if self._client is not None:
      self._call.result()
      if any(x["open"] for x in workers):  # by a trainer that died
        self._client.finish_weight_update()

  def update(self, version: int | None = None) -> reshard.SessionReport:
    """Collective over the trainer. Brings the engine to the tensors' present values.

    Returns when every worker uses them. Tensors must not be written meanwhile. The server's
    `weight_version` is the version, as text.

    version  above the engine's, which is the default plus one. Equal on all ranks.

    Errors: as the constructor's. The engine then has its old weights, unless the error says that
    it is torn. After any but a wrong version the group is gone: make a new Trainer.
    """
    version = self.version + 1 if version is None else version
    if version <= self.version:
      raise ValueError(f"version {version}: the engine is at {self.version}")
    if self._client is None:
      report = self._link.refit(version)
      self._check(self._link.gather({}))
    else:
      report = self._drive(self._client, version)
    self.version = version
    return report

  def _drive(self, client: Client, version: int) -> reshard.SessionReport:
    """Rank 0's part: refits while the workers, asked by a call, do."""
    with self._link.ends_the_group():
      if self._pause is not None:
        _method(client, "pause")(self._pause)
      client.start_weight_update()
    call = _Call(lambda: client.update_weights({"version": version}), self._ends)
    try:
      report = self._link.refit(version)
      self._check(self._link.gather({}))
    except BaseException as error:
      call.raise_instead(error)
      self._give_up(client, error)
      raise
    call.result()
    client.finish_weight_update(str(version))
    if self._pause is not None:
      _method(client, "resume")()
    return report

  def _give_up(self, client: Any, error: BaseException) -> None:
    """Closes the update that failed. An engine that is not torn goes on with its old weights."""
    torn = isinstance(error, TornError)
    try:
      client.finish_weight_update()
      if torn and hasattr(client, "update_weight_version"):
        client.update_weight_version("torn")
      if not torn and self._pause is not None and not self._invitation.in_place:
        _method(client, "resume")()
    except Exception as other:  # the first error says more
      error.add_note(f"and the engine: {other}")

  def _ends(self, call: _Call[None]) -> None:
    if call.error is not None:
      self._link.abort(f"the engine refused the update: {call.error}")

  def _check(self, told: list[Any]) -> None:
    failed = [x["torn"] for x in told[self.size :] if x.get("torn")]
    if failed:
      raise TornError(f"the engine is torn: {failed[0]}")

  def close(self) -> None:
    """Leaves the group; the engine keeps its weights. Idempotent."""
    link = getattr(self, "_link", None)
    if link is not None:
      link.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    self.close()

  def __repr__(self) -> str:
    i = self._invitation
    return f"<Trainer rank {self.rank} of {i.trainers}, {i.workers} workers, at {self.version}>"


def layouts_of(
  model: reshard.Model, told: list[Any], trainers: int
) -> tuple[reshard.Layout, reshard.Layout]:
  """The trainers' and the workers' layouts, from what all ranks told."""
  source = _layout_of("trainer", model, told, range(trainers))
  return source, _layout_of("engine", model, told, range(trainers, len(told)), omit=True)


def _layout_of(
  name: str, model: reshard.Model, told: list[Any], ranks: range, omit: bool = False
) -> reshard.Layout:
  held = {i: told[i]["holds"] for i in ranks}
  values = manifest.build(name, model, held, omit=omit)
  forms = [told[i].get("quant") for i in ranks]
  if any(form != forms[0] for form in forms):
    raise reshard.UnsupportedError(f"the {name}'s ranks hold different quantised formats")
  quant = Quantisation.told(forms[0])
  return values if quant is None else quant.of(values)


def _check_same(layout: reshard.Layout, told: reshard.Layout, rank: int) -> None:
  """Quantised layouts are made anew of what was told."""
  if layout.quantised:
    forms = [[(t.name, t.dtype, t.bytes) for t in x.local(rank)] for x in (layout, told)]
    if sorted(forms[0], key=str) != sorted(forms[1], key=str):
      raise reshard.UnsupportedError(
        f"{layout.name}: the engine cannot be told how this layout is quantised"
      )


class _Call(Generic[T]):
  """A call in a thread of its own: workers join and receive while it runs."""

  def __init__(self, call: Callable[[], T], ended: Callable[[_Call[T]], None]) -> None:
    self.error: BaseException | None = None
    self._value: T | None = None
    self._thread = threading.Thread(target=self._run, args=(call, ended), daemon=True)
    self._thread.start()

  def _run(self, call: Callable[[], T], ended: Callable[[_Call[T]], None]) -> None:
    try:
      self._value = call()
    except BaseException as error:  # noqa: BLE001 - result() raises it
      self.error = error
    ended(self)

  def result(self) -> T:
    """Waits, and raises what the call raised."""
    self._thread.join()
    if self.error is not None:
      raise self.error
    return cast(T, self._value)

  def raise_instead(self, error: BaseException) -> None:
    """If the call has failed, or fails now that the group has ended: its error, which says why."""
    self._thread.join(timeout=5.0)
    if self.error is not None:
      raise self.error from error


def _method(client: Any, name: str) -> Callable[..., Any]:
  found = getattr(client, name, None)
  if found is None:
    raise ValueError(f"the client {client!r} has no {name}()")
  return cast(Callable[..., Any], found)


def _world_size(client: Any) -> int:
  found = getattr(client, "get_world_size", None)
  if found is None:
    raise ValueError(f"pass workers=: the client {client!r} has no get_world_size()")
  return int(found())


def _config_of(model: reshard.Model) -> str:
  return Path(model.config_path).read_text() if model.config_path else ""


def _agreed(client: Client | None, size: int, given: dict[str, Any]) -> dict[str, Any]:
  """The rendezvous, equal on every rank of the trainer; rank 0 makes what it was not given.

  Collective where torch.distributed has the trainer's ranks. Else every rank must be given all.
  """
  if size == 1:
    return _completed(client, given)
  if not _has_torch_ranks(size):
    if any(value is None for value in given.values()):
      raise ValueError(
        "pass url=, job=, secret= and workers= on all ranks, or make the default torch.distributed "
        f"group, of {size} ranks"
      )
    return given
  made = gathered(
    None, lambda: None if client is None else _completed(client, given), "Trainer", timeout=0
  )
  common = next(dict(answer) for answer in made if answer is not None)
  for name, value in given.items():
    if value not in (None, common[name]):
      raise ValueError(f"{name}= differs from that of rank 0")
  return common


def _completed(client: Client | None, given: dict[str, Any]) -> dict[str, Any]:
  workers = given["workers"]
  return {
    "url": given["url"] or f"file://{tempfile.gettempdir()}",
    "job": given["job"] or f"reshard-{os.getpid()}-{uuid.uuid4().hex[:12]}",
    "secret": given["secret"] or secrets.token_hex(32),
    "workers": _world_size(client) if workers is None else workers,
  }


def _has_torch_ranks(size: int) -> bool:
  try:
    from torch import distributed
  except ImportError:
    return False
  return (
    distributed.is_available()
    and distributed.is_initialized()
    and distributed.get_world_size() == size
  )
