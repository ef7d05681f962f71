# SPDX-License-Identifier: Apache-2.0
"""Live updates of SGLang's weights, from a trainer in any layout. docs/sglang.md.

An engine needs one argument, `--custom-weight-loader reshard.sglang.load`; a trainer makes a
`Trainer` on each of its ranks and calls `update()` after each step. Does not import SGLang.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, cast

import reshard
import torch
from reshard import tracing
from reshard import _manifest as manifest
from reshard.engines import state
from reshard.engines.invitation import Invitation, InvitedLink, Invitations
from reshard.engines.link import TornError
from reshard.engines.trainer import EngineTrainer, layouts_of
from reshard._names import listed
from reshard.tracing._derived import derive, nothing_derived
from reshard.tracing._modules import named_tensors as tensors_of
from reshard.tracing._types import torch_dtype

__all__ = ["EngineClient", "TornError", "Trainer", "load"]

LOADER = "reshard.sglang.load"
_INIT, _UPDATE, _LEAVE = "reshard.init", "reshard.update", "reshard.leave"
_log = logging.getLogger(__name__)


class EngineClient:
  """An engine's update calls as what `Trainer` needs of an engine.

  engine   a `sglang.Engine`, or anything with its methods begin_weight_update(selector),
           update_weights_from_tensor(named_tensors, load_format, flush_cache) and
           end_weight_update(). Borrowed. Nothing else may call it during an update.
  workers  its processes, one for each GPU; None: as its `server_args` say.

  Errors: RuntimeError with the engine's message.
  """

  def __init__(self, engine: Any, workers: int | None = None) -> None:
    self.engine = engine
    self._workers = workers

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Has every worker begin to join, or take the trainer that has joined."""
    try:
      self.start_weight_update()
    except RuntimeError:  # a trainer that died has left it open
      self.finish_weight_update()
      self.start_weight_update()
    try:
      self._load(_INIT, init_info, flush_cache=False)
    finally:
      self.finish_weight_update()

  def start_weight_update(self) -> None:
    """Begins an update of the engine's model, and not of a draft model."""
    _checked(self.engine.begin_weight_update("target"))

  def update_weights(self, update_info: Any) -> None:
    """Has every worker receive an update, and forgets what was cached of the old weights."""
    self._load(_UPDATE, update_info, flush_cache=True)

  def finish_weight_update(self, weight_version: str | None = None) -> None:
    """Ends an update. The engine is not told the version."""
    _checked(self.engine.end_weight_update())

  def leave(self, job: str) -> None:
    """Has every worker leave the trainer of this name, so that it need not wait for them."""
    self.start_weight_update()
    try:
      self._load(_LEAVE, {"job": job}, flush_cache=False)
    finally:
      self.finish_weight_update()

  def get_world_size(self) -> int:
    """The number of workers."""
    if self._workers is not None:
      return self._workers
    options = self.engine.server_args
    if options.dp_size > 1:
      raise reshard.UnsupportedError("SGLang updates no engine with dp_size > 1 from tensors")
    return int(options.tp_size * options.pp_size)

  def _load(self, name: str, said: dict[str, Any], flush_cache: bool) -> None:
    text = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    _checked(
      self.engine.update_weights_from_tensor(
        [(name, text)], load_format=LOADER, flush_cache=flush_cache
      )
    )


def _checked(answer: Any) -> None:
  if isinstance(answer, tuple) and not answer[0]:
    raise RuntimeError(f"SGLang: {answer[1]}")


class Trainer(EngineTrainer):
  """Updates the weights of a running SGLang engine from tensors in any layout.

  Every rank of the trainer makes one, with equal arguments but for `rank`, `tensors` and `engine`,
  and calls `update()` after a training step. Collective, with the engine's workers. Each byte moves
  once, from the rank that has it to the workers that lack it; no rank gathers whole tensors.

  The engine must have been started with `--custom-weight-loader reshard.sglang.load`.

  layout      of the trainer, over the ranks [0, size).
  tensors     this rank's local tensors, by the layout's names: all on the host, or all on one GPU.
              Their addresses must not change.
  engine      of rank 0: see `EngineClient`. None on other ranks.
  workers     of the engine; by default it is asked.
  rank, size  of this process among the trainer's.
  url, job, secret
              where the group meets, its name and its secret; rank 0 makes them by default, and the
              others learn them through the default group of torch.distributed (see `reshard.join`).
  transport   "shm" within a host; see `reshard.join`.
  route       how a worker takes its weights: "local" (its own parts only, as its loader would leave
              them), "checkpoint" (all tensors, through `load_weights`) or "auto" (local if its
              layout can be found out, else checkpoint).
  verify      compare fingerprints of what was sent and what arrived, before it is used.
  deadline    seconds for joining, and for the refit of an update.
  only        patterns of the tensors to update ("*" matches any characters, "#" a number). A worker updates the
              parameters of its own that hold something of them, each as a whole: with a query projection also key
              and value, with an expert all of its layer; with whole tensors (`route`) everything. Others are neither
              planned nor sent, and keep their values. By default everything in the layout.
  merge       {name: peft.LoraConfig or dict}: LoRA adapters in the layout that are merged into what is
              sent; see `reshard.lora.Merge`.
  on_phase    called when this rank enters a phase of an update: "begin", "transfer", "check",
              "commit", "committed". An exception ends the update on all ranks.

  Errors: ValueError for arguments; DeadlineError and AbortedError if a rank is missing or dies;
  UnsupportedError if a worker cannot take the model; TornError if a worker could not load what had
  arrived; RuntimeError with the engine's message. A worker that cannot join also says why in the
  engine's log.
  """

  def __init__(
    self,
    layout: reshard.Layout,
    tensors: Mapping[str, Any],
    *,
    engine: Any = None,
    workers: int | None = None,
    **options: Any,
  ) -> None:
    for name in ("client", "in_place", "pause", "adapters", "draft"):
      if name in options:
        raise ValueError(f"{name}= is not for SGLang")
    self._engine = None if engine is None else EngineClient(engine, workers)
    super().__init__(layout, tensors, client=self._engine, workers=workers, **options)

  def close(self) -> None:
    """Leaves the group, on rank 0 with the engine's workers; the engine keeps its weights. Idempotent.

    Without it the process of rank 0 waits up to ten seconds for the workers when it ends.
    """
    engine, self._engine = self._engine, None
    link = getattr(self, "_link", None)
    if engine is not None and link is not None and link.works:
      try:
        engine.leave(self._invitation.job)
      except Exception as error:  # an engine that has ended
        _log.warning("reshard: the engine's workers were not told to leave: %s", error)
    super().close()


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
  """SGLang's custom weight loader: joins a trainer, leaves it, or receives an update and loads it.

  SGLang calls it in each worker with the worker's model; and with a draft model of speculative
  decoding after it, which is left as it is. The weights of an update first arrive in
  memory of their own. Only when all workers have all of them does each copy its own into its
  parameters, which keep their memory. Until then the model has its old weights, whatever happens
  to the trainer; an error is the trainer's then, and is only logged here, because one that is
  raised here would end the engine.

  Errors: ValueError for tensors that are not a Trainer's; TornError if what arrived could not be
  loaded: the engine ends then, for its weights are of two versions.
  """
  for name, tensor in named_tensors:
    if name not in (_INIT, _UPDATE, _LEAVE):
      raise ValueError(f"{LOADER} takes no tensor '{name}': it is for reshard.sglang.Trainer")
    said = json.loads(tensor.cpu().numpy().tobytes())
    if _is_draft(model, str(said.get("job")), name == _INIT):
      continue
    worker = _workers.setdefault(model, _Worker())
    try:
      if name == _INIT:
        worker.join(model, said)
      elif name == _LEAVE:
        worker.leave(str(said["job"]))
      else:
        worker.receive(model, int(said["version"]), str(said.get("job")))
    except TornError:
      worker.leave()
      raise
    except Exception as error:
      _log.error("reshard: the old weights stay: %s", error)


def _is_draft(model: torch.nn.Module, job: str, invites: bool) -> bool:
  """True for all models of this process but the first that a trainer's invitation reaches.

  SGLang passes updates from tensors to its draft model too, after the target.
  """
  if invites:
    _drafts.discard(model)
    if any(other is not model and job in worker.jobs for other, worker in _workers.items()):
      _drafts.add(model)
  return model in _drafts


class _Worker:
  """A worker's link to a trainer."""

  def __init__(self) -> None:
    self.jobs: collections.deque[str] = collections.deque(maxlen=16)  # of the last that invited it
    self._invitations = Invitations()
    self._link: InvitedLink | None = None
    self._version = 0
    self._arrived: dict[str, torch.Tensor] = {}
    self._whole = False  # whole tensors, for load_weights
    self._forms: list[Any] = []  # of the model's tensors when the trainer joined

  def join(self, model: torch.nn.Module, said: Mapping[str, Any]) -> None:
    """Begins to join a trainer; or, if its group is complete, takes it, and leaves a former one."""
    invitation = Invitation.of(said)
    if invitation.job not in self.jobs:
      self.jobs.append(invitation.job)
    link = self._invitations.take(invitation, invitation.trainers + _rank())
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
    invitation, first = link.invitation, link.invitation.trainers
    mine = _local(model, invitation, link.rank - first)
    messages = link.gather({"local": mine is not None})[first:]
    self._whole = not all(other["local"] for other in messages)
    if self._whole and invitation.route == "local":
      raise reshard.UnsupportedError("the layout of this engine is not known; its log says why")
    tensors = manifest.model_of(invitation.tensors)
    holds = mine
    if self._whole or mine is None:
      holds = manifest.describe(reshard.layout("hf", tensors), 0)
    messages = link.gather({"holds": holds, "quant": None, "version": self._version, "open": False})
    source, target = layouts_of(tensors, messages, first)
    buffers = reshard.RankBuffers.allocate(target, [link.rank], shared=True)
    memory = buffers.tensors(link.rank)
    self._arrived = {t.name: _viewed(t, memory[t.name]) for t in target.local(link.rank)}
    link.prepare(source, target, target_tensors=memory)
    self._forms = _forms(model)
    _log.info("reshard: joined, as rank %d; %s tensors", link.rank, "whole" if self._whole else "local")

  def receive(self, model: torch.nn.Module, version: int, job: str) -> None:
    """Receives an update of the trainer of this name; any other's changes nothing."""
    link = self._link
    ours = link is not None and link.invitation.job == job
    try:
      self._receive(model, version, link if ours else None)
    except Exception:
      if ours:
        self.leave()
      raise

  def _receive(self, model: torch.nn.Module, version: int, link: InvitedLink | None) -> None:
    failure: Exception | None = None
    try:
      if link is None:
        raise reshard.InvalidArgumentError("no trainer has joined, or not this one")
      with link.ends_the_group():
        self._check(model)
      link.refit(version)
    except Exception as error:
      failure = error
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

  def _check(self, model: torch.nn.Module) -> None:
    """Raises UnsupportedError if the engine is not as it was when the trainer joined, or sleeps."""
    if _forms(model) != self._forms:
      raise reshard.UnsupportedError(
        "the names, shapes or dtypes of the engine's tensors have changed since the trainer joined: "
        "make a new Trainer"
      )
    name = state.unmapped(tensors_of(model).items())
    if name:
      raise reshard.UnsupportedError(
        f"the engine has released the memory of '{name}': call resume_memory_occupation(tags=['weights']), "
        "then make a new Trainer"
      )

  def _apply(self, model: torch.nn.Module) -> None:
    if self._whole:
      cast(Any, model).load_weights(iter(self._arrived.items()))
      return
    live = tensors_of(model)
    with torch.no_grad():
      for name, tensor in self._arrived.items():
        live[name].copy_(tensor.view(live[name].shape))
      derive(model)

  def leave(self, job: str | None = None) -> None:
    """Leaves the trainer, if it has this name."""
    if job is not None and (self._link is None or self._link.invitation.job != job):
      return
    link, self._link = self._link, None
    self._arrived = {}
    if link is not None:
      link.close()


_workers: weakref.WeakKeyDictionary[torch.nn.Module, _Worker] = weakref.WeakKeyDictionary()
_drafts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def _forms(model: torch.nn.Module) -> list[Any]:
  return [(name, tuple(t.shape), t.dtype) for name, t in tensors_of(model).items()]


def _moves_experts() -> bool:
  """Whether SGLang balances the load of experts, which moves them between slots while it serves."""
  try:
    from sglang.srt import runtime_context
  except ImportError:
    try:
      from sglang.srt.server_args import get_global_server_args
    except ImportError:
      return False
    options = get_global_server_args()
  else:
    options = runtime_context.get_exec().moe
  return any(getattr(options, name, None) for name in ("enable_eplb", "elastic_ep_backend"))


def _local(
  model: torch.nn.Module, invitation: Invitation, rank: int
) -> manifest.Manifest | None:
  """What this worker receives, as its own load_weights() would leave it; None if that is not known.

  Raises UnsupportedError if load_weights() refuses the trainer's names or shapes: it would refuse
  them again when it is too late. SGLang's skips names that it does not know; so it is an error, too,
  if a parameter would get nothing.
  """
  if invitation.route == "checkpoint":
    return None
  if _moves_experts():
    # load_weights() asks for the present places of experts at each update.
    _log.warning("reshard: this engine gets whole tensors: enable_eplb moves experts between slots")
    return None
  try:
    with nothing_derived(model):
      layout = tracing.traced(
        lambda _: model,
        lambda module, weights: cast(Any, module).load_weights(weights),
        manifest.model_of(invitation.tensors),
        ranks=[rank],
        method="recording",
        name="engine",
      )
    live = tensors_of(model)
    holds = []
    for entry, tensor in zip(manifest.describe(layout, rank), layout.local(rank), strict=True):
      own = live[entry["name"]]
      if tuple(own.shape) != tuple(tensor.shape):
        shapes = f"{list(tensor.shape)}, but lies as {list(own.shape)}"
        raise reshard.UnsupportedError(f"'{tensor.name}' is loaded as {shapes}")
      holds.append({**entry, "dtype": str(own.dtype).removeprefix("torch.")})
  except Exception as error:
    if not isinstance(error, reshard.Error) and "meta" not in str(error):  # torch's word for no memory
      raise reshard.UnsupportedError(
        f"this engine's loader refuses the trainer's tensors: {error!r}"
      ) from error
    _log.warning("reshard: this engine gets whole tensors: %s", error)
    return None
  filled = {id(live[entry["name"]]) for entry in holds}
  empty = [name for name, parameter in model.named_parameters() if id(parameter) not in filled]
  if empty:
    raise reshard.UnsupportedError(
      f"this engine's loader takes none of the trainer's tensors for {listed(empty)}; "
      "with route='checkpoint' these keep their values"
    )
  if invitation.wanted is None:
    return holds
  wanted = set(invitation.wanted)
  return [entry for entry in holds if any(part["tensor"] in wanted for part in entry["parts"])]


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
