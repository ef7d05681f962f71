# SPDX-License-Identifier: Apache-2.0
"""The engine's side of a live update: one object per worker of SGLang. Imports SGLang where it runs in one."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import reshard
import torch
from reshard import _manifest as manifest
from reshard.engines import state
from reshard.engines.invitation import Invitation, InvitedLink, Invitations
from reshard.engines.link import TornError
from reshard.engines.trainer import layouts_of
from reshard.sglang.adapters import Adapters
from reshard.sglang.client import INIT, LEAVE, LOADER, UPDATE
from reshard.sglang.models import UpdatedModel, forms_of, updated_models
from reshard.tracing._modules import named_tensors as tensors_of
from reshard.tracing._types import torch_dtype

__all__ = ["load"]

_log = logging.getLogger(__name__)


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
  """SGLang's custom weight loader: joins a trainer, leaves it, or receives an update and loads it.

  SGLang calls it in each worker with the worker's model, and after that with its draft models. What a call does, it does
  with the first of these; the others are noted when a trainer invites the worker. The weights of an update first arrive
  in memory of their own. Only when all workers have all of them does each copy its own into its
  parameters, which keep their memory. Until then the models have their old weights, whatever happens
  to the trainer; an error is the trainer's then, and is only logged here, because one that is
  raised here would end the engine.

  Errors: ValueError for tensors that are not a Trainer's; TornError if what arrived could not be
  loaded: the engine ends then, for its weights are of two versions.
  """
  for name, tensor in named_tensors:
    if name not in (INIT, UPDATE, LEAVE):
      raise ValueError(f"{LOADER} takes no tensor '{name}': it is for reshard.sglang.Trainer")
    said = json.loads(tensor.cpu().numpy().tobytes())
    job = str(said.get("job"))
    if name == INIT:
      _invite(model, job)
    if _is_draft(model, job):
      continue
    worker = _workers.setdefault(model, _Worker())
    try:
      if name == INIT:
        worker.join(model, said)
      elif name == LEAVE:
        worker.leave(job)
      else:
        worker.receive(model, int(said["version"]), job, bool(said.get("background")))
    except TornError:
      worker.leave()
      raise
    except Exception as error:
      _log.error("reshard: the old weights stay: %s", error)


class _Invited:
  """The models of this process that a trainer's invitation has reached, in the order of SGLang's calls."""

  def __init__(self, model: torch.nn.Module) -> None:
    self.target = weakref.ref(model)
    self._drafts: list[weakref.ref[torch.nn.Module]] = []

  def note(self, model: torch.nn.Module) -> None:
    """A model that the invitation reaches, for the first time or again."""
    if model is not self.target() and model not in self.drafts:
      self._drafts.append(weakref.ref(model))

  @property
  def drafts(self) -> list[torch.nn.Module]:
    """The draft models."""
    return [model for ref in self._drafts if (model := ref()) is not None]


_invited: collections.OrderedDict[str, _Invited] = collections.OrderedDict()  # by job, of the last trainers


def _invite(model: torch.nn.Module, job: str) -> None:
  found = _invited.get(job)
  if found is None or found.target() is None:
    found = _invited[job] = _Invited(model)
    while len(_invited) > 16:
      _invited.popitem(last=False)
  found.note(model)


def _is_draft(model: torch.nn.Module, job: str) -> bool:
  """True for all models but the first that an invitation reaches."""
  found = _invited.get(job)
  if found is not None:
    return model is not found.target()
  return any(model in other.drafts for other in _invited.values())


class _Worker:
  """A worker's link to a trainer."""

  def __init__(self) -> None:
    self._invitations = Invitations()
    self._link: InvitedLink | None = None
    self._version = 0
    self._arrived: dict[str, torch.Tensor] = {}
    self._models: list[UpdatedModel] = []
    self._adapters: Adapters | None = None
    self._forms: list[Any] = []  # of the models' tensors when the trainer joined

  def join(self, model: torch.nn.Module, said: Mapping[str, Any]) -> None:
    """Begins to join a trainer; or, if its group is complete, takes it, and leaves a former one."""
    invitation = Invitation.of(said)
    if not _rank() < len(invitation.ranks):
      raise reshard.InvalidArgumentError(f"worker {_rank()} of an engine of {len(invitation.ranks)} workers: pass the right workers=")
    link = self._invitations.take(invitation, invitation.ranks[_rank()])
    if link is None:
      return
    self.leave()
    try:
      with link.ends_the_group():
        self._prepare(model, link)
    except BaseException:
      link.close()
      raise
    self._link = link

  def _prepare(self, model: torch.nn.Module, link: InvitedLink) -> None:
    said, own = link.invitation, link.invitation.ranks
    models = updated_models(said, link.rank - own.start, model, _invited[said.job].drafts)
    adapters = Adapters(said, model)
    mine = {"known": [m.is_known for m in models], "untaken": adapters.untaken}
    messages = link.gather(mine)[own.start : own.stop]
    _check_taken(said, messages)
    for i, updated in enumerate(models):
      updated.choose(all(other["known"][i] for other in messages if len(other["known"]) > i))
    tensors = manifest.model_of(said.tensors)
    holds = [entry for updated in models for entry in updated.holds] + adapters.holds(tensors)
    messages = link.gather({"holds": holds, "quant": None, "version": self._version, "open": False})
    source, targets = layouts_of(tensors, messages, said.trainers, said.engines)
    target = targets[said.engine]
    buffers = reshard.RankBuffers.allocate(target, [link.rank], shared=True)
    memory = buffers.tensors(link.rank)
    self._arrived = {t.name: _viewed(t, memory[t.name]) for t in target.local(link.rank)}
    link.prepare(source, targets, target_tensors=[memory if i == said.engine else None for i in range(len(targets))])
    self._models, self._adapters, self._forms = models, adapters, forms_of(models)
    _log.info("reshard: joined, as rank %d; %s", link.rank, ", ".join(m.route for m in models))

  def receive(self, model: torch.nn.Module, version: int, job: str, background: bool = False) -> None:
    """Receives an update of the trainer of this name; any other's changes nothing. `background`: begins to receive it."""
    link = self._link
    ours = link is not None and link.invitation.job == job
    try:
      if background:
        self._start(model, version, link if ours else None)
      else:
        self._receive(model, version, link if ours else None)
    except Exception:
      if ours:
        self.leave()
      raise

  def _start(self, model: torch.nn.Module, version: int, link: InvitedLink | None) -> None:
    if link is None:
      raise reshard.InvalidArgumentError("no trainer has joined, or not this one")
    with link.ends_the_group():
      self._check(model)
    link.start(version)

  def _receive(self, model: torch.nn.Module, version: int, link: InvitedLink | None) -> None:
    failure = self._arrival(model, version, link)
    # A trainer may die when some workers have everything and others do not.
    if not _on_all(failure is None):
      raise failure or reshard.AbortedError(f"another worker has not got version {version}")
    assert link is not None
    torn = ""
    try:
      self._apply(model)
      self._version = version
    except Exception as error:
      torn = f"version {version} could not be loaded: {error!r}"
    if not _on_all(not torn):
      torn = torn or f"version {version} could not be loaded by another worker"
    with contextlib.suppress(reshard.Error):  # a trainer that died now has done its part
      link.gather({"torn": torn})
    if torn:
      raise TornError(torn)

  def _arrival(self, model: torch.nn.Module, version: int, link: InvitedLink | None) -> Exception | None:
    """Waits until everything is here; why it is not."""
    try:
      if link is None:
        raise reshard.InvalidArgumentError("no trainer has joined, or not this one")
      assert self._adapters is not None
      with link.ends_the_group():
        self._check(model)
      link.refit(version)
      with link.ends_the_group():
        self._adapters.make(model, self._arrived)
    except Exception as error:
      return error
    return None

  def _check(self, model: torch.nn.Module) -> None:
    """Raises UnsupportedError if the engine is not as it was when the trainer joined, or sleeps."""
    if forms_of(self._models) != self._forms:
      raise reshard.UnsupportedError(
        "the names, shapes or dtypes of the engine's tensors have changed since the trainer joined: "
        "make a new Trainer"
      )
    assert self._adapters is not None
    tensors = [named for updated in self._models for named in tensors_of(updated.model).items()]
    name = state.unmapped(tensors + self._adapters.slots(model))
    if name:
      raise reshard.UnsupportedError(
        f"the engine has released the memory of '{name}': call resume_memory_occupation(tags=['weights']), "
        "then make a new Trainer"
      )

  def _apply(self, model: torch.nn.Module) -> None:
    for updated in self._models:
      updated.apply(self._arrived)
    for updated in self._models:  # of a draft model also from what it shares with its target
      updated.derive()
    assert self._adapters is not None
    self._adapters.apply(model)

  def leave(self, job: str | None = None) -> None:
    """Leaves the trainer, if it has this name."""
    if job is not None and (self._link is None or self._link.invitation.job != job):
      return
    link, self._link = self._link, None
    self._arrived, self._models, self._adapters = {}, [], None
    if link is not None:
      link.close()


_workers: weakref.WeakKeyDictionary[torch.nn.Module, _Worker] = weakref.WeakKeyDictionary()


def _check_taken(said: Invitation, messages: Sequence[Any]) -> None:
  """Raises UnsupportedError if no worker has a place for something that the trainer sends."""
  if said.draft_config is not None and not any(len(other["known"]) > 1 for other in messages):
    raise reshard.UnsupportedError("the trainer updates a draft model, and the engine has none with weights")
  for name, why in messages[0]["untaken"].items():
    if all(name in other["untaken"] for other in messages):
      raise reshard.UnsupportedError(f"SGLang would drop '{name}' of an adapter: {why}")


def _viewed(tensor: Any, memory: Any) -> torch.Tensor:
  """The memory of a local tensor in its shape."""
  dtype = torch_dtype(tensor.dtype.name.upper())
  if tensor.bytes == 0:
    return torch.empty(list(tensor.shape), dtype=dtype)
  return torch.frombuffer(memory.raw(), dtype=torch.uint8).view(dtype).view(list(tensor.shape))


def _rank() -> int:
  """This worker's number among those of the engine."""
  dist = torch.distributed
  return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _on_all(mine: bool) -> bool:
  """Collective over the engine's workers: true if it is on all of them."""
  dist = torch.distributed
  if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
    return mine
  word = torch.tensor([int(mine)], dtype=torch.int32)
  dist.all_reduce(word, op=dist.ReduceOp.MIN, group=_host_group())
  return bool(word.item())


def _host_group() -> Any:
  """The engine's group for tensors of the host: SGLang's, else the default one."""
  try:
    from sglang.srt.distributed.parallel_state import get_world_group
  except ImportError:
    return None
  return get_world_group().cpu_group
