# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a live update of an engine: what the adapters for vLLM and SGLang share."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import reshard
from reshard import _manifest as manifest
from reshard._collective import gathered
from reshard._errors import add_note
from reshard.engines import checking
from reshard.engines.clients import Clients, world_size
from reshard.engines.hidden import without_secret
from reshard.engines.invitation import MAX_DEADLINE, Invitation, InvitedLink
from reshard.engines.link import TornError
from reshard.engines.parts import Draft, Merging, Parts, config_of
from reshard.engines.pending import Call, PendingUpdate
from reshard.engines.quantisation import Quantisation

if TYPE_CHECKING:
  from typing_extensions import Self  # of typing from Python 3.11 on

  from reshard.check import Report

__all__ = ["Client", "EngineTrainer", "layouts_of"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Client(Protocol):
  """What a trainer needs of an engine: the methods of vLLM's `VLLMWeightSyncClient`."""

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Calls `init_transfer_engine` on every worker and returns when all have."""

  def start_weight_update(self) -> None:
    """Begins an update on every worker."""

  def update_weights(self, update_info: Any) -> None:
    """Calls `update_weights` on every worker and returns when all have."""

  def finish_weight_update(self, weight_version: str | None = None) -> None:
    """Ends an update on every worker, and gives the weights a version."""


class EngineTrainer:
  """A trainer of a running engine. The adapters' trainers derive from it and say what its arguments are."""

  #: The report of the last check; None: there was none.
  checked: Report | None = None

  def __init__(
    self,
    layout: reshard.Layout,
    tensors: Mapping[str, Any],
    *,
    client: Client | Sequence[Client] | None = None,
    rank: int = 0,
    size: int = 1,
    url: str | None = None,
    job: str | None = None,
    secret: str | None = None,
    transport: str = "shm",
    workers: int | Sequence[int] | None = None,
    route: str = "auto",
    in_place: bool = False,
    verify: bool = False,
    pause: str | None = None,
    deadline: float = 120.0,
    on_phase: Callable[[str], None] | None = None,
    only: Iterable[str] = (),
    adapters: Mapping[str, Any] | None = None,
    merge: Mapping[str, Any] | None = None,
    draft: Draft | None = None,
    check: float = 0.0,
    snapshot: bool = False,
  ) -> None:
    _check_options(client, rank, route, deadline, check)
    parts = Parts(layout, only, adapters, merge, draft)
    self.rank, self.size, self.version = rank, size, 0
    self._client = client = Clients(client) if isinstance(client, Sequence) else client
    self._pause, self._on_phase, self._share = pause, on_phase, float(check)
    self._snapshot, self._pending = snapshot, False
    self._tensors = dict(tensors)
    self._merge: Any = None
    engines = [workers] if isinstance(workers, int) else workers and list(workers)
    given = {"url": url, "job": job, "secret": secret, "engines": engines}
    self._invitation = Invitation(
      **_agreed(client, size, given),
      trainers=size,
      transport=transport,
      deadline=deadline,
      route=route,
      in_place=in_place,
      verify=verify,
      tensors=parts.table,
      config=config_of(layout.model),
      adapters=parts.adapters,
      draft_config=parts.draft_config,
      wanted=parts.wanted,
    )
    self._link = self._join()
    try:
      if parts.merge:
        with self._link.ends_the_group():
          self._merge = Merging(parts.merge, layout, self._tensors, self._invitation, rank)
          self._tensors = self._merge.tensors
      self._prepare(layout, parts)
    except BaseException:
      self.close()
      raise

  def _join(self) -> InvitedLink:
    """Rank 0 asks the workers to join while it joins itself: each waits for the other."""
    if self._client is None:
      return InvitedLink(self._invitation, self.rank)
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()
    asking = self._invite(self._client, False, ended.put)
    joining = Call(lambda: InvitedLink(self._invitation, self.rank), ended.put)
    if ended.get() is asking:
      asking.result()  # an engine that refuses ends the wait for it
    try:
      link = joining.result()
    except BaseException as error:
      asking.raise_instead(error)
      raise
    try:
      asking.result()
      if self._invitation.draft_config is not None:
        self._show_draft(link)

      def taken(call: Call[None]) -> None:
        if call.error is not None:
          link.abort(f"the engine refused the trainer: {call.error}")

      self._call = self._invite(self._client, True, taken)
    except BaseException:
      link.close()
      raise
    return link

  def _invite(self, client: Client, ready: bool, ended: Callable[[Call[None]], None]) -> Call[None]:
    """Has every worker begin to join; `ready`: take the trainer, whose group is complete."""

    def invite() -> None:
      failed: Exception | None = None
      try:
        client.init_weight_transfer_engine(self._invitation.as_dict(ready))
      except Exception as error:
        failed = without_secret(error, self._invitation.secret)
      if failed is not None:
        raise failed

    return Call(invite, ended)

  def _show_draft(self, link: InvitedLink) -> None:
    """On rank 0: has each worker learn its draft model. It begins an update of it, which ends when the trainer has joined.

    A call that fails on a worker of vLLM leaves the answers of others unread (see `WorkerEngine._fails`); so the
    workers have said before whether it can.
    """
    workers = link.messages[link.invitation.trainers :]
    if not all(isinstance(said, dict) and said.get("drafts") for said in workers):
      raise reshard.UnsupportedError(
        "draft=: the engine has no draft model with weights, or pipeline stages, of which only the last has it"
      )
    if any(said["open"] for said in workers):  # by a trainer that died
      _method(self._client, "finish_weight_update")()
    _method(self._client, "start_draft_weight_update")()

  def _prepare(self, layout: reshard.Layout, parts: Parts) -> None:
    link, trainers = self._link, self._invitation.trainers
    try:
      link.gather({})  # the workers agree on their route
      quant = Quantisation.of_layout(layout)
      mine = {"holds": parts.holds(layout, self.rank), "quant": quant and quant.as_dict(), "version": 0}
      messages = link.gather(mine)
      model = manifest.model_of(self._invitation.tensors)
      with link.ends_the_group():
        parts.check_taken(p["tensor"] for x in messages[trainers:] for held in x["holds"] for p in held["parts"])
      source, targets = layouts_of(model, messages, trainers, self._invitation.engines)
      _check_same(layout, source, self.rank)
      if len(parts.table) != len(layout.model.tensors) or parts.draft_config is not None:
        self._tensors = parts.tensors(self._tensors, source, self.rank)
      self._tensors = {t.name: _viewed(self._tensors[t.name], t.shape) for t in source.local(self.rank)}
      link.prepare(source, targets, source_tensors=self._tensors, on_phase=self._on_phase, snapshot=self._snapshot)
      self._source = source
      workers = messages[trainers:]
      self.version = max(int(x["version"]) for x in workers)
      self._checks = all(bool(x.get("checks")) for x in workers)
      with link.ends_the_group():
        if self._share > 0:
          self._must_check()
    except BaseException as error:
      if self._client is not None:
        self._call.raise_instead(error)
      raise
    if self._client is not None:
      self._call.result()
      if any(x["open"] for x in workers):  # by a trainer that died
        self._client.finish_weight_update()

  def update(self, version: int | None = None, *, stream: Any = None) -> reshard.SessionReport:
    """Collective over the trainer. Brings the engine to the tensors' present values.

    Returns when every worker uses them. Tensors must not be written meanwhile. The server's
    `weight_version` is the version, as text.

    version  above the engine's, which is the default plus one. Equal on all ranks.
    stream   of the GPU that has this rank's tensors, which are read after its work; None: torch's
             current stream. See `reshard.RankBuffers`.

    Errors: as the constructor's. The engine then has its old weights, unless the error says that
    it is torn. After any but a wrong version the group is gone: make a new Trainer.
    """
    version = self._next(version, stream)
    checked = self._share > 0 and checking.chosen(version, self._share)
    said = {"version": version} | ({"check": checking.UPDATE} if checked else {})
    report = self._together(said, lambda: self._take(version, stream, checked))
    self.version = version
    return report

  def update_async(self, version: int | None = None, *, stream: Any = None) -> PendingUpdate:
    """Collective over the trainer. The same in the background: returns at once, or, with `snapshot=True`, when the snapshot
    is complete.

    The engine goes on serving its old weights until result() of the PendingUpdate, which every rank must call. Until then
    only one update is under way, and check() must not be called. Tensors must not be written before sources_free().

    Errors: as update()'s, from result(); UnsupportedError with `in_place`, which would tear the engine meanwhile, and
    with `check`, which compares the engine with tensors that may have changed then.
    """
    if self._invitation.in_place or self._share > 0:
      option = "in_place=True" if self._invitation.in_place else f"check={self._share:g}"
      raise reshard.UnsupportedError(f"{option}: an update in the background cannot have it; use update(), or check() afterwards")
    version = self._next(version, stream)
    if self._client is not None:
      with self._link.ends_the_group():
        self._begin(self._client, version)
    pending = self._link.start(version, stream)
    self._pending = True

    def take() -> reshard.SessionReport:
      report = self._together({"version": version}, lambda: self._take(version, None, False))
      self.version, self._pending = version, False
      return report

    return PendingUpdate(version, pending, take)

  def _begin(self, client: Any, version: int) -> None:
    """Has the workers begin to receive in the background."""
    client.start_weight_update()
    try:
      client.update_weights({"version": version, "job": self._invitation.job, "background": True})
    finally:
      client.finish_weight_update()

  def _next(self, version: int | None, stream: Any) -> int:
    """The version of an update, whose tensors are then those to send."""
    if self._pending:
      raise reshard.InvalidArgumentError("an update is in the background: call its result() first")
    version = self.version + 1 if version is None else version
    if version <= self.version:
      raise ValueError(f"version {version}: the engine is at {self.version}")
    if self._merge is not None:
      with self._link.ends_the_group():
        self._merge.merge(stream)
    return version

  def _take(self, version: int, stream: Any, checked: bool) -> reshard.SessionReport:
    """This rank's part of an update, while the workers do theirs."""
    report = self._link.refit(version, stream)
    self._check(self._link.gather({}))
    if checked:
      self._compare().raise_for_difference()
    return report

  def check(self) -> Report:
    """Collective over the trainer. Compares the engine with a fresh load of the tensors' present values.

    Each worker loads them by its engine's own loader into a second model, in the host's memory, and compares everything that
    its kernels read. Tensors must not be written meanwhile: call it behind update(). Nothing is changed, whatever differs:
    see Report.raise_for_difference(). docs/check.md.

    Errors: as update()'s; UnsupportedError for an engine whose workers do not check themselves.
    """
    self._must_check()
    if self._pending:
      raise reshard.InvalidArgumentError("an update is in the background: call its result() first")
    return self._together({"version": self.version, "check": checking.NOW}, self._compare)

  def _must_check(self) -> None:
    """Raises UnsupportedError if some workers cannot check themselves."""
    if not self._checks:
      raise reshard.UnsupportedError("workers of this engine do not check themselves")

  def _compare(self) -> Report:
    with self._link.ends_the_group():
      self.checked = checking.serve(self._link, self._source, self._tensors)
    return self.checked

  def _together(self, said: dict[str, Any], take: Callable[[], T]) -> T:
    """take() on every rank, while rank 0 asks the workers to do their part; `said` to them."""
    if self._client is None:
      return take()
    client = self._client
    with self._link.ends_the_group():
      if self._pause is not None:
        _method(client, "pause")(self._pause)
      client.start_weight_update()
    call = Call(lambda: client.update_weights({**said, "job": self._invitation.job}), self._ends)
    try:
      taken = take()
    except BaseException as error:
      call.raise_instead(error)
      self._give_up(client, error)
      raise
    call.result()
    client.finish_weight_update(str(said["version"]))
    if self._pause is not None:
      _method(client, "resume")()
    return taken

  def _give_up(self, client: Any, error: BaseException) -> None:
    """Closes the update that failed. An engine that is not torn goes on with its old weights."""
    torn = isinstance(error, TornError) or getattr(error, "code", "") == "different"
    try:
      client.finish_weight_update()
      if torn and hasattr(client, "update_weight_version"):
        client.update_weight_version("torn")
      if not torn and self._pause is not None and not self._invitation.in_place:
        _method(client, "resume")()
    except Exception as other:  # the first error says more
      add_note(error, f"and the engine: {other}")

  def _ends(self, call: Call[None]) -> None:
    if call.error is not None:
      self._link.abort(f"the engine refused the update: {call.error}")

  def _check(self, messages: list[Any]) -> None:
    failed = [x["torn"] for x in messages[self.size :] if x.get("torn")]
    if failed:
      raise TornError(f"the engine is torn: {failed[0]}")

  def close(self) -> None:
    """Leaves the group, on rank 0 with those workers that can be told to; the engine keeps its weights. Idempotent."""
    link, leave = getattr(self, "_link", None), getattr(self._client, "leave", None)
    self._client = None
    if leave is not None and link is not None and link.works:
      try:
        leave(self._invitation.job)
      except Exception as error:  # an engine that has ended
        _log.warning("reshard: the engine's workers were not told to leave: %s", error)
    if link is not None:
      if self._merge is not None:
        self._merge.close()
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
    return f"<{type(self).__name__} rank {self.rank} of {i.trainers}, {i.workers} workers, at {self.version}>"


def _check_options(client: Any, rank: int, route: str, deadline: float, check: float) -> None:
  if (client is None) != (rank != 0):
    raise ValueError("rank 0 of the trainer, and no other, has the client")
  if route not in ("auto", "local", "checkpoint"):
    raise ValueError(f"route '{route}': one of auto, local, checkpoint")
  if not 0 < deadline <= MAX_DEADLINE:
    raise ValueError(f"deadline {deadline}: must be above 0 and at most {MAX_DEADLINE:g} seconds")
  if not 0 <= check <= 1:
    raise ValueError(f"check {check}: the share of updates to check, from 0 to 1")


def layouts_of(
  model: reshard.Model, messages: list[Any], trainers: int, engines: Sequence[int] | None = None
) -> tuple[reshard.Layout, list[reshard.Layout]]:
  """The trainers' layout and that of each engine, from the messages of all ranks.

  engines  the number of workers of each; None: all other ranks are one engine
  """
  source = _layout_of("trainer", model, messages, range(trainers))
  targets: list[reshard.Layout] = []
  first = trainers
  for i, workers in enumerate(engines or [len(messages) - trainers]):
    name = "engine" if engines is None or len(engines) == 1 else f"engine {i + 1}"
    targets.append(_layout_of(name, model, messages, range(first, first + workers), omit=True))
    first += workers
  return source, targets


def _layout_of(
  name: str, model: reshard.Model, messages: list[Any], ranks: range, omit: bool = False
) -> reshard.Layout:
  held = {i: messages[i]["holds"] for i in ranks}
  values = manifest.build(name, model, held, omit=omit)
  forms = [messages[i].get("quant") for i in ranks]
  if any(form != forms[0] for form in forms):
    raise reshard.UnsupportedError(f"the {name}'s ranks hold different quantised formats")
  quant = Quantisation.from_message(forms[0])
  return values if quant is None else quant.of(values)


def _check_same(layout: reshard.Layout, sent: reshard.Layout, rank: int) -> None:
  """Quantised layouts are made anew from a message."""
  if layout.quantised:
    forms = [[(t.name, t.dtype, t.bytes) for t in x.local(rank)] for x in (layout, sent)]
    if sorted(forms[0], key=str) != sorted(forms[1], key=str):
      raise reshard.UnsupportedError(
        f"{layout.name}: the engine cannot be told how this layout is quantised"
      )


def _viewed(tensor: Any, shape: Sequence[int]) -> Any:
  """A tensor of a file's shape in that of the model's, where dimensions of the model are one in files (gpt-oss)."""
  view = getattr(tensor, "view", None)
  if view is None or len(tensor.shape) >= len(shape):
    return tensor
  return view(tuple(shape))


def _method(client: Any, name: str) -> Callable[..., Any]:
  found = getattr(client, name, None)
  if found is None:
    raise ValueError(f"the client {client!r} has no {name}()")
  return cast(Callable[..., Any], found)


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
      raise ValueError(f"{'workers' if name == 'engines' else name}= differs from that of rank 0")
  return common


def _completed(client: Client | None, given: dict[str, Any]) -> dict[str, Any]:
  engines = given["engines"]
  if engines is None:
    engines = client.sizes() if isinstance(client, Clients) else [world_size(client)]
  if isinstance(client, Clients) != (len(engines) > 1) or (isinstance(client, Clients) and len(client) != len(engines)):
    raise ValueError(f"workers= has {len(engines)} entries: one for each of the engines in client=")
  return {
    "url": given["url"] or f"file://{tempfile.gettempdir()}",
    "job": given["job"] or f"reshard-{os.getpid()}-{uuid.uuid4().hex[:12]}",
    "secret": given["secret"] or secrets.token_hex(32),
    "engines": engines,
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
