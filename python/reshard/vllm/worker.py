# SPDX-License-Identifier: Apache-2.0
"""The engine's side of a live update: one object per worker of vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import reshard
import torch
from reshard import _manifest as manifest
from reshard.engines import checking
from reshard.engines.invitation import Invitation, InvitedLink, Invitations
from reshard.engines.state import difference
from reshard.engines.trainer import layouts_of
from reshard.vllm import interface, reload, state
from reshard.vllm.adapters import Adapters
from reshard.vllm.routes import Arrived
from reshard.vllm.updated import Updated, updated
from vllm.distributed.weight_transfer.base import (
  WeightTransferEngine,
  WeightTransferInitInfo,
  WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

logger = init_logger(__name__)

__all__ = ["InitInfo", "UpdateInfo", "WorkerEngine"]


@dataclass
class InitInfo(Invitation, WeightTransferInitInfo):  # type: ignore[misc]
  """The invitation of a trainer, as vLLM carries it."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
  """One update."""

  version: int = field(kw_only=True)
  job: str = field(kw_only=True)  # of the trainer
  background: bool = field(default=False, kw_only=True)  # begin to receive; another call will end it
  check: str = field(default="", kw_only=True)  # checking.NOW or checking.UPDATE
  update_kind: str = field(default="dense", kw_only=True)  # vLLM 0.24 asks for it


class WorkerEngine(WeightTransferEngine):  # type: ignore[misc]
  """Receives weights from a `reshard.vllm.Trainer`.

  The weights of an update first arrive in memory of their own; only when all workers have all of
  them does each put its own into the model. Until then the model has its old weights, whatever
  happens to the trainer. (Not so with `in_place`.)
  """

  init_info_cls = InitInfo
  update_info_cls = UpdateInfo
  supports_draft_weight_update = True

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self._vllm_config, self._device, self._own_model = interface.current_config(args)
    self._invitations = Invitations()
    self._link: InvitedLink | None = None
    self._placement: dict[str, Any] = {}
    self._models: list[Updated] = []
    self._adapters: Adapters | None = None
    self._arrived: Arrived | None = None
    self._live = False  # parts of updates are written where they are used
    self._refitted = False  # by the update that is going on
    self._draft: tuple[torch.nn.Module, Any] | None = None  # and its ModelConfig
    self._drafting = False
    self._published = reshard.PublishedVersion()
    self._version = 0
    self._open = False
    self._torn = ""
    self._guard: Any = None

  def parse_init_info(self, init_dict: dict[str, Any]) -> InitInfo | reshard.Error:
    """The invitation, or why it is none: init_transfer_engine() says it, see `_fails`."""
    try:
      return InitInfo.of(init_dict)
    except reshard.Error as error:
      return error

  def init_transfer_engine(self, init_info: InitInfo | reshard.Error) -> None:
    """Begins to join a trainer; or, if its group is complete, takes it, and forgets a former one.

    Errors: those of joining, and UnsupportedError if the model cannot be taken. All workers of an
    engine fail together; only the last one raises (see `_fails`).
    """
    try:
      if isinstance(init_info, reshard.Error):
        raise init_info
      self._join(init_info)
    except Exception as error:
      parallel = self._vllm_config.parallel_config
      self._fails("could not join the trainer", error, parallel.rank == parallel.world_size - 1)

  def _join(self, init_info: InitInfo) -> None:
    worker = _worker_rank(self._vllm_config.parallel_config)
    if not worker < len(init_info.ranks):
      raise reshard.InvalidArgumentError(f"worker {worker} of an engine of {len(init_info.ranks)} workers: pass the right workers=")
    rank = init_info.ranks[worker]
    state.check(self._own_model, self._vllm_config, init_info.in_place, update=init_info.in_place)
    link = self._invitations.take(init_info, rank, {"open": self._open, "drafts": self._drafts()})
    if link is None:
      return
    self._leave()
    try:
      with link.ends_the_group():
        self._prepare(link, init_info)
    except BaseException:
      link.close()
      raise
    self._link = link

  def _fails(self, what: str, error: Exception, raises: bool) -> None:
    """Reports an error that all workers of this engine share.

    After a call that failed on some worker, vLLM's executor for several processes does not read the
    answers of those behind it, and takes them for answers to later calls. So at most the last
    worker raises; the trainer learns of the error through the group in any case.
    """
    logger.error("reshard: %s: %s", what, error)
    if raises:
      raise error

  def _prepare(self, link: InvitedLink, init_info: InitInfo) -> None:
    own = init_info.ranks
    model = manifest.model_of(init_info.tensors)
    adapters = Adapters(init_info, self._own_model, self._vllm_config)
    with adapters.electing(init_info.job, link.rank), self._inside():
      models = updated(init_info, link.rank - own.start, self._own_model, self._vllm_config, self._draft)
      messages = link.gather({"routes": [m.found for m in models]})[own.start : own.stop]
      adapters.elect()
      ways = [m.choose([other["routes"][i] for other in messages]) for i, m in enumerate(models)]
      quant = models[0].quant
      messages = link.gather(
        {
          "holds": [entry for m in models for entry in m.holds] + adapters.holds(model),
          "quant": quant and quant.as_dict(),
          "version": self._at(),
          "open": self._open,
          "checks": True,
        }
      )
    source, targets = layouts_of(model, messages, init_info.trainers, init_info.engines)
    live = {name: tensor for m in models for name, tensor in m.live.items()}
    arrived = Arrived(targets[init_info.engine], link.rank, live)
    memory = [arrived.memory if i == init_info.engine else None for i in range(len(targets))]
    link.prepare(source, targets, target_tensors=memory, published=self._published)
    self._models, self._adapters, self._arrived, self._live = models, adapters, arrived, bool(live)
    self._source = source
    self._placement = self._placed()
    logger.info(
      "reshard: worker %d of %d joined %d trainer ranks; route %s",
      link.rank - own.start,
      len(own),
      init_info.trainers,
      ", ".join(ways),
    )

  def _placed(self) -> dict[str, Any]:
    """What the layouts of the updated models depend on."""
    with self._inside():
      placed = state.placement(self._own_model, self._vllm_config)
      if len(self._models) > 1 and self._draft is not None:
        draft = state.placement(self._draft[0], self._vllm_config)
        placed |= {f"{what}, of its draft model": value for what, value in draft.items()}
      return placed

  @contextlib.contextmanager
  def _inside(self) -> Iterator[None]:
    """What calls of vLLM's loaders need around them: its config, and the model without LoRA layers."""
    with interface.inside(self._vllm_config, self._device), reload.without_adapters(self._own_model):
      yield

  def set_weight_update_target(self, model: torch.nn.Module, model_config: Any) -> None:
    """Notes the draft model, which vLLM shows when an update of it begins."""
    self._draft, self._drafting = (model, model_config), True

  def reset_weight_update_target(self) -> None:
    """Notes that no update of the draft model is open."""
    self._drafting = False

  def _drafts(self) -> bool:
    """Whether every worker of the engine has a draft model with weights: vLLM has it on the last stage only."""
    speculative = getattr(self._vllm_config, "speculative_config", None)
    if getattr(speculative, "draft_model_config", None) is None:
      return False
    return int(self._vllm_config.parallel_config.pipeline_parallel_size) == 1

  def _restore(self) -> None:
    """Ends reloads that failed half way."""
    reload.restore(self._own_model, self._vllm_config.model_config)
    if self._draft is not None:
      reload.restore(*self._draft)

  def start_weight_update(self) -> None:
    """Notes that an update is open. The model keeps its weights until all new ones are here."""
    self._open = True

  def update_weights(self, update_info: dict[str, Any]) -> None:
    """Receives one update and puts it into the model."""
    self.receive_weights(self.parse_update_info(update_info))

  def receive_weights(self, update_info: UpdateInfo, load_weights: Any = None) -> None:
    """Receives one update and puts it into the model, if all workers of the engine have it.

    One in the background begins with a call that returns at once, and ends with another. An error is the trainer's, too, and is only logged here: see `_fails`. The trainer is forgotten
    then, and the model has its old weights, or is torn. An update of nobody, or of another trainer
    than the one that has joined, changes nothing: RuntimeError, if this is the only worker.
    """
    version = update_info.version
    link = self._link
    ours = link is not None and link.invitation.job == update_info.job
    try:
      if update_info.background:
        self._start(version, link if ours else None)
      elif update_info.check != checking.NOW:
        self._receive(version, link if ours else None)
      if update_info.check:
        self._compare(link if ours else None, refuse=update_info.check == checking.UPDATE)
    except Exception as error:
      if ours:
        self._leave()
      alone = self._vllm_config.parallel_config.world_size == 1
      self._fails(f"no update to version {version}", error, raises=alone and not ours)

  def _start(self, version: int, link: InvitedLink | None) -> None:
    """Begins to receive in the background. Raises why it cannot."""
    failure = self._obstacle(link)
    if failure is not None:
      raise failure
    assert link is not None
    with link.ends_the_group():
      if link.invitation.in_place:
        raise reshard.UnsupportedError("in_place=True: an update in the background would tear the engine")
      self._check(in_place=False)
    link.start(version)

  def _receive(self, version: int, link: InvitedLink | None) -> None:
    failure = self._arrival(version, link)
    # A trainer may die while some workers have committed and others have not. So the workers ask
    # each other, in the engine's own process group.
    if not self._all(failure is None):
      if not self._all(not self._written()):
        self._tear(f"version {version} has arrived in part: {failure or 'on another worker'}")
      raise failure or reshard.AbortedError(f"another worker has not got version {version}")
    failure = self._load(version)
    if not self._all(failure is None):
      self._tear(f"version {version} could not be loaded: {failure or 'on another worker'}")
    else:
      self._version = version
      self._mend()
    assert link is not None
    link.gather({"torn": self._torn})
    if self._torn:
      raise reshard.AbortedError(f"the engine is torn: {self._torn}") from failure

  def _arrival(self, version: int, link: InvitedLink | None) -> Exception | None:
    """Waits until all bytes are here; why they are not."""
    failure = self._obstacle(link)
    if failure is not None:
      return failure
    assert link is not None
    self._refitted = False
    try:
      with link.ends_the_group():
        self._check(link.invitation.in_place)
      if interface.IS_FIRST:  # whose workers may have begun a reload
        with self._inside():
          self._restore()
      link.refit(version)
      self._refitted = True
      assert self._adapters is not None and self._arrived is not None
      with link.ends_the_group():
        self._adapters.write(self._arrived.raw)
    except Exception as error:
      return error
    return None

  def _obstacle(self, link: InvitedLink | None) -> Exception | None:
    """Why no update of this trainer can be received; None if one can."""
    if link is None:
      known = "no trainer has joined" if self._link is None else "another trainer has joined"
      return RuntimeError(f"{known}: call init_weight_transfer_engine first")
    if self._drafting and len(self._models) < 2:
      return RuntimeError("an update of the draft model alone: the trainer that has joined updates the engine's model")
    return None

  def _check(self, in_place: bool) -> None:
    """Raises UnsupportedError if the engine is not as it was when the trainer joined, or sleeps."""
    with self._inside():
      state.check(self._own_model, self._vllm_config, in_place, update=True)
    changed = difference(self._placement, self._placed())
    if changed:
      raise reshard.UnsupportedError(
        f"the engine has changed {changed} since the trainer joined: make a new Trainer"
      )

  def _load(self, version: int) -> Exception | None:
    """Puts what has arrived into the model; why that failed."""
    assert self._arrived is not None and self._adapters is not None
    with self._inside():
      try:
        for model in self._models:
          model.apply(self._arrived)
        self._adapters.commit()
      except Exception as error:
        with contextlib.suppress(Exception):
          self._restore()
        return error
    return None

  def _compare(self, link: InvitedLink | None, refuse: bool) -> None:
    """Compares the model with a fresh load of the trainer's tensors; `refuse`: the model is torn if it differs."""
    if link is None or not self._models:
      raise RuntimeError("no trainer has joined, or another one: call init_weight_transfer_engine first")
    with link.ends_the_group():
      with self._inside():
        state.check(self._own_model, self._vllm_config, link.invitation.in_place, update=True)
        mine = self._models[0].check(link, self._source, self._vllm_config, self._device)
    report = checking.reports(link, mine)
    if refuse and not report.equal:
      self._tear(f"it differs from a fresh load: {report}")
      raise reshard.AbortedError("the engine is torn: it differs from a fresh load")

  def _written(self) -> bool:
    """True if the models' own memory has been written, in part or by an update that another worker lacks."""
    return self._live and (self._refitted or self._published.target_version().state != "whole")

  def _all(self, mine: bool) -> bool:
    """Collective over the workers that make up one model: true if it is on all of them."""
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    if group.world_size == 1:
      return mine
    word = torch.tensor([int(mine)], dtype=torch.int32, device="cpu")
    torch.distributed.all_reduce(word, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return bool(word.item())

  def finish_weight_update(self) -> None:
    """Notes that the update is closed."""
    self._open = False

  @staticmethod
  def trainer_send_weights(*_: Any) -> None:
    """Of versions before 0.28. A trainer uses `reshard.vllm.Trainer`."""
    raise NotImplementedError("use reshard.vllm.Trainer")

  def shutdown(self) -> None:
    """Leaves the trainer. The model keeps its weights."""
    self._invitations.close()
    self._leave()

  def _at(self) -> int:
    """The last version that this worker has had, whole or not."""
    return max(self._version, int(self._published.target_version().version), 0)

  def _leave(self) -> None:
    link, self._link = self._link, None
    self._models, self._adapters, self._arrived, self._live = [], None, None, False
    if link is not None:
      link.close()

  def _tear(self, reason: str) -> None:
    """Marks the model as torn: it refuses to run until the next update."""
    logger.error("reshard: this engine's weights are TORN: %s", reason)
    self._torn = reason
    if self._guard is None:
      self._guard = self._own_model.register_forward_pre_hook(self._refuse)

  def _refuse(self, *_: Any) -> None:
    raise reshard.AbortedError(f"the weights of this engine are torn: {self._torn}")

  def _mend(self) -> None:
    self._torn = ""
    if self._guard is not None:
      self._guard.remove()
      self._guard = None


def _worker_rank(parallel: Any) -> int:
  """This worker's rank among those of all data-parallel replicas."""
  replica = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
  return int(replica * parallel.world_size + parallel.rank)
