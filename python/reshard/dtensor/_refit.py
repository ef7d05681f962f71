# SPDX-License-Identifier: Apache-2.0
"""The refit of one module from another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

import reshard
from reshard import _core
from reshard._collective import gathered
from reshard._errors import InvalidArgumentError, NotFoundError
from reshard._gpus import current_stream
from reshard.dtensor._memory import Shards, Streams, identity, placed
from reshard.dtensor._modules import Described, Place, local_names
from reshard.dtensor._sessions import Verify
from reshard.dtensor._transfer import sessions_over
from reshard.live._dtensors import of_transformers
from reshard.live._names import Names, listed, matches
from reshard.live._parts import Held
from reshard.live._ranks import FullTensors, Ranks, unpacked

_WHAT = "Refit"
_HINT = "rename it with names=, or name it in ignore="
_SIDES = ("source", "target")


class Refit:
  """Brings all tensors of one module, or dict, to those of another: prepared once, then called each step.

      refit = reshard.dtensor.Refit(trainer, None, group)  # on the trainer's ranks
      refit = reshard.dtensor.Refit(None, engine, group)   # on the engine's
      refit()                                              # on all, after each step

  source, target  a module (its parameters and persistent buffers), a list of modules, or {name:
                  tensor}, on the ranks that have a part; else None. A tensor is a DTensor, a plain
                  tensor, or an object with `.shape` and `._local_tensor`. Kept until close()
  process_group   as for xferdtensor(): of the ranks of both sides
  model           a reshard.Model whose names both sides use, or map to: tensors of transformers that
                  stack experts, fused ones of layouts, and single ones then find each other. None:
                  names are equal on both sides
  source_layout, target_layout
                  with `model`: a reshard.Layout that says what the side's tensors are, such as
                  reshard.layout("vllm:tp=4,offset=8", model) or that of reshard.of_modules(). Equal
                  on all ranks. Names of tensors are then those of the layout, which for several
                  chunks of Megatron's are those of reshard.module_tensors(). None: DTensors say it
                  themselves, other tensors by source_place
  source_names, target_names
                  what tensors are called, as for reshard.of_dtensors(); None leaves one out
  source_place, target_place
                  where tensors lie that are no DTensors: a function of name and tensor, to (mesh,
                  placements), or None if the tensor is whole on every rank that has it; or a list of
                  (pattern, mesh, placements), of which the first that matches counts ("*" any
                  characters, "#" digits; mesh None: whole), and a name that none matches is an
                  error. So experts have a mesh of their own. Shards are even, unless the tensor has
                  the full shape. None: all are whole
  ignore          patterns of tensors that one side may lack
  transport, verify, timeout
                  as for xferdtensor()

  Every tensor moves, whatever its kind: norms, routers, biases, scales of FP8 weights and of KV
  caches. What is not in `model` (KV scales, say) finds its counterpart by name. A tensor of either
  side without a counterpart is a NotFoundError that names it. One of the target that is tied to
  another arrives once, by any of its names.

  Collective: making one, calling it, with all ranks of the group. Errors are those of xferdtensor(),
  on all ranks. A context manager; close() lets go of the tensors.
  """

  def __init__(
    self,
    source: Any,
    target: Any,
    process_group: Any = None,
    *,
    model: _core.Model | None = None,
    source_layout: _core.Layout | None = None,
    target_layout: _core.Layout | None = None,
    source_names: Names = None,
    target_names: Names = None,
    source_place: Place = None,
    target_place: Place = None,
    ignore: str | Iterable[str] = (),
    transport: str = "auto",
    verify: Verify = "never",
    timeout: float = 60.0,
  ) -> None:
    sessions, self._ranks = sessions_over(process_group, transport, timeout)
    self._group, self._timeout = sessions.group, timeout
    self._sides: list[Described] = []
    self._layouts = (source_layout, target_layout)
    self._moves: list[_Move] = []
    self.version = 0
    patterns = [ignore] if isinstance(ignore, str) else list(ignore)
    self._ignored = [matches(pattern) for pattern in patterns]
    full = FullTensors(model, () if model is None else of_transformers(model))

    def look() -> Any:
      if model is None and self._layouts != (None, None):
        raise InvalidArgumentError("Refit: source_layout and target_layout need model=")
      self._sides = [
        Described(source, source_names, source_place, "source"),
        Described(target, target_names, target_place, "target"),
      ]
      return [self._say(side, layout, full) for side, layout in zip(self._sides, self._layouts, strict=True)]

    said = gathered(self._group, look, _WHAT, timeout)
    for source_, target_, names in self._plans(full, said):
      self._moves.append(_Move(self._group, source_, target_, names, verify, timeout))
    self._tensors = [side.locals() for side in self._sides]
    for move in self._moves:
      move.prepare(self._tensors)

  def _say(self, side: Described, layout: _core.Layout | None, full: FullTensors) -> Any:
    """This rank's part of a side: what is of the model, what is not, other names."""
    planned = local_names(layout, self._group.rank)
    main: list[Any] = []
    rest: list[Any] = []
    if layout is None:
      held, tied = side.held(self._group.rank, self._group.size, self._ranks)
      for one in held:
        (main if full.model is not None and one.whole in full else rest).append(one.pack())
    else:
      held, tied = side.held(self._group.rank, self._group.size, self._ranks, planned)
      rest = [one.pack() for one in held]
    return {"main": main or None, "rest": rest or None, "tied": tied}

  def _plans(
    self, full: FullTensors, said: Sequence[Any]
  ) -> Iterable[tuple[_core.Layout, _core.Layout, list[str]]]:
    """(source, target, names that one side may lack) of each session. The same on all ranks."""
    if full.model is not None:
      sides = []
      for k, layout in enumerate(self._layouts):
        ranks = unpacked([answer[k]["main"] for answer in said], 0)
        if layout is None and not ranks:
          raise InvalidArgumentError(f"Refit: no rank has a tensor of the model as {_SIDES[k]}")
        sides.append(full.layout(_SIDES[k], ranks, _HINT) if layout is None else layout)
      names = [t.name for t in full.model.tensors if self._may_lack(t.name)]
      # A layout leaves out what its engine does not have; a module shall have all.
      if self._layouts[1] is None:
        tied_to = {n for answer in said for others in answer[1]["tied"].values() for n in others}
        omitted = reshard.plan(sides[0], sides[1], ignore=names).omitted
        _missing("target", [n for n in omitted if n not in tied_to and not self._may_lack(n)])
      yield sides[0], sides[1], names
    source, target = (unpacked([answer[k]["rest"] for answer in said], 0) for k in (0, 1))
    tied: dict[str, list[str]] = {}
    for answer in said:
      tied.update(answer[1]["tied"])
    self._pair(source, target, tied)
    if source:
      of = FullTensors(None).layout("source", source, _HINT)
      yield of, FullTensors(of.model).layout("target", target, _HINT), []
    elif full.model is None:
      raise InvalidArgumentError("Refit: no rank has a tensor as source")

  def _may_lack(self, name: str) -> bool:
    return any(match(name) for match in self._ignored)

  def _pair(self, source: Ranks, target: Ranks, tied: Mapping[str, list[str]]) -> None:
    """Leaves what both sides have. Raises NotFoundError for what only one has."""
    have = {held.whole for here in source.values() for held in here}
    called = {}  # a tied tensor of the target, by the name that the source has
    for name, others in tied.items():
      known = [other for other in others if other in have]
      if known and name not in have:
        called[name] = known[0]
    for rank, here in target.items():
      target[rank] = [Held(h.name, called.get(h.whole, h.whole), h.dtype, h.shape, h.runs) for h in here]
    want = {held.whole for here in target.values() for held in here}
    also = {other for names in tied.values() for other in names} | set(tied)
    _missing("source", sorted(n for n in want - have if not self._may_lack(n)))
    _missing("target", sorted(n for n in have - want - also if not self._may_lack(n)))
    for ranks in (source, target):
      for rank in list(ranks):
        ranks[rank] = [held for held in ranks[rank] if held.whole in have & want]
        if not ranks[rank]:
          del ranks[rank]

  def __call__(self, *, stream: Any = None) -> list[_core.SessionReport]:
    """Brings the target to the source's present values. Collective; the source must not change meanwhile.

    stream  as for xferdtensor()

    Returns a report for each plan: of the tensors of `model`, and of the others. Tensors that were
    replaced in their module since are found again.
    """
    if not self._moves:
      raise InvalidArgumentError("Refit: closed")
    self.version += 1
    reports = []

    def look() -> None:
      self._tensors = [side.locals() for side in self._sides]
      for move in self._moves:
        move.update(self._tensors)

    gathered(self._group, look, _WHAT, self._timeout)
    for move in self._moves:
      reports.append(move.run(self.version, self._tensors, stream))
    return reports

  def close(self) -> None:
    """Ends the sessions and lets go of the tensors. Idempotent."""
    for move in self._moves:
      move.close()
    self._moves, self._sides, self._tensors = [], [], []

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
  ) -> None:
    self.close()


class _Move:
  """One session of a refit, and this rank's memory in it."""

  def __init__(
    self,
    group: _core.ProcessGroup,
    source: _core.Layout,
    target: _core.Layout,
    ignore: list[str],
    verify: Verify,
    timeout: float,
  ) -> None:
    self._group, self._layouts = group, (source, target)
    self._options: dict[str, Any] = {"ignore": ignore, "verify": verify, "timeout": timeout, "replan": True}
    self._names = [local_names(layout, group.rank) for layout in self._layouts]
    self._known: list[dict[str, Any]] = []
    self._shards: list[Shards] = []
    self._session: _core.Session | None = None

  def _mine(self, tensors: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [
      {n: t for n, t in here.items() if n in names} for here, names in zip(tensors, self._names, strict=True)
    ]

  def _look(self, tensors: Sequence[dict[str, torch.Tensor]]) -> bool:
    """Notes where the tensors are. True if any has moved."""
    mine = self._mine(tensors)
    now = [{name: identity(tensor) for name, tensor in here.items()} for here in mine]
    if now == self._known:
      return False
    self._shards = placed(mine)
    self._known = now
    return True

  def prepare(self, tensors: Sequence[dict[str, torch.Tensor]]) -> None:
    self._look(tensors)
    source, target = self._layouts
    self._session = reshard.Session(
      self._group,
      source=source,
      target=target,
      source_tensors=self._shards[0].views if self._group.rank in source.ranks else None,
      target_tensors=self._shards[1].views if self._group.rank in target.ranks else None,
      stream=current_stream(*(shards.home for shards in self._shards)),
      **self._options,
    )

  def update(self, tensors: Sequence[dict[str, torch.Tensor]]) -> None:
    if self._session is None or not self._look(tensors):
      return
    for k, key in enumerate(("source_tensors", "target_tensors")):
      if self._group.rank in self._layouts[k].ranks:
        moved: dict[str, Any] = {key: self._shards[k].views}
        self._session.update(**moved)

  def run(
    self, version: int, tensors: Sequence[dict[str, torch.Tensor]], stream: Any
  ) -> _core.SessionReport:
    assert self._session is not None
    sources, targets = self._mine(tensors)
    streams = Streams(self._shards, [stream], [*sources.values(), *targets.values()])
    streams.begin()
    self._shards[0].read(sources)
    report = self._session.refit(version, stream=streams.current)
    self._shards[1].write(targets)
    streams.end()
    return report

  def close(self) -> None:
    if self._session is not None:
      self._session.close()


def _missing(side: str, names: Sequence[str]) -> None:
  if names:
    other = "target" if side == "source" else "source"
    raise NotFoundError(f"Refit: the {side} has no counterpart of the {other}'s {listed(names)}; {_HINT}")
