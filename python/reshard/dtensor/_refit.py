# SPDX-License-Identifier: Apache-2.0
"""The refit of one module from another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

import reshard
from reshard import _core
from reshard._arguments import checked
from reshard._collective import gathered
from reshard._errors import InvalidArgumentError, NotFoundError
from reshard._gpus import current_stream
from reshard.dtensor._memory import Shards, Streams, identity, placed
from reshard.dtensor._modules import Described, Place, local_names
from reshard.dtensor._pairs import HINT, Pairing, missing
from reshard.dtensor._sessions import Verify
from reshard.dtensor._transfer import sessions_over
from reshard.live._dtensors import of_transformers
from reshard._names import Names, matches
from reshard.live._ranks import FullTensors, Ranks

if TYPE_CHECKING:
  from typing_extensions import Self  # of typing from Python 3.11 on

_WHAT = "Refit"
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
  only            patterns of the tensors to move, by the names of `model` or of the source; none: all.
                  Others keep their bytes in the target, and either side may lack them
  transport, verify, timeout
                  as for xferdtensor()

  Every tensor moves, whatever its kind: norms, routers, biases, scales of FP8 weights and of KV
  caches. What is not in `model` (KV scales, say) finds its counterpart by name. A tensor of either
  side without a counterpart is a NotFoundError that names it. A tied tensor of the target arrives by
  any of its names; it is an InvalidArgumentError if these are different tensors of the source.

  Collective: making one, calling it, with all ranks of the group. Errors are those of xferdtensor(),
  on all ranks. A context manager; close() lets go of the tensors.
  """

  @checked
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
    only: str | Iterable[str] = (),
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
    self._only = {pattern: matches(pattern) for pattern in ([only] if isinstance(only, str) else only)}
    full = FullTensors(model, () if model is None else of_transformers(model))

    def look() -> Any:
      if model is None and self._layouts != (None, None):
        raise InvalidArgumentError("Refit: source_layout and target_layout need model=")
      self._sides = [
        Described(source, source_names, source_place, "source"),
        Described(target, target_names, target_place, "target"),
      ]
      return [self._say(side, layout) for side, layout in zip(self._sides, self._layouts, strict=True)]

    said = gathered(self._group, look, _WHAT, timeout)
    for source_, target_, may_lack, selected in self._plans(full, said):
      self._moves.append(_Move(self._group, source_, target_, may_lack, selected, verify, timeout))
    self._tensors = [side.locals() for side in self._sides]
    for move in self._moves:
      move.prepare(self._tensors)

  def _say(self, side: Described, layout: _core.Layout | None) -> Any:
    """What this rank has of a side besides what a layout says, and its tied names."""
    planned = local_names(layout, self._group.rank)
    held, tied = side.held(self._group.rank, self._group.size, self._ranks, planned)
    return {"held": [one.pack() for one in held], "tied": tied}

  def _plans(
    self, full: FullTensors, said: Sequence[Any]
  ) -> Iterable[tuple[_core.Layout, _core.Layout, list[str], list[str]]]:
    """(source, target, names that one side may lack, names to move) of each session; no names to move
    are all. The same on all ranks."""
    model = full.model
    if model is None:
      pairs = Pairing(said, self._may_lack)
      rest = [pairs.source, pairs.target]
    else:
      names = [t.name for t in model.tensors]
      by_layout = [() if layout is None else names for layout in self._layouts]
      pairs = Pairing(said, self._may_lack, (by_layout[0], by_layout[1]), model.tied)
      # What a layout does not name is none of the model's there.
      main, rest = pairs.split([full.__contains__ if x is None else lambda _: False for x in self._layouts])
      self._check_only([*pairs.have, *names])
      main_plan = self._main_plan(full, pairs, main)
      if main_plan is not None:
        yield main_plan
    if model is None:
      self._check_only(pairs.have)
    source, target = pairs.match(rest[0], rest[1], self._selects)
    if source:
      of = FullTensors(None).layout("source", source, HINT)
      yield of, FullTensors(of.model).layout("target", target, HINT), [], []
    elif model is None:
      raise InvalidArgumentError("Refit: no rank has a tensor as source")

  def _main_plan(
    self, full: FullTensors, pairs: Pairing, main: Sequence[Ranks]
  ) -> tuple[_core.Layout, _core.Layout, list[str], list[str]] | None:
    """The plan of the model's tensors. None if none of them shall move."""
    assert full.model is not None
    selected = [t.name for t in full.model.tensors if self._selects(t.name)]
    if not selected:
      return None
    sides = []
    for k, layout in enumerate(self._layouts):
      if layout is None and not main[k]:
        raise InvalidArgumentError(f"Refit: no rank has a tensor of the model as {_SIDES[k]}")
      sides.append(full.layout(_SIDES[k], main[k], HINT) if layout is None else layout)
    names = [t.name for t in full.model.tensors if self._may_lack(t.name)]
    # A layout leaves out what its engine does not have; a module shall have all.
    if self._layouts[1] is None:
      omitted = reshard.plan(sides[0], sides[1], ignore=names).omitted
      lost = [n for n in omitted if not self._may_lack(n) and not pairs.is_used(n) and not pairs.is_tied(n)]
      missing("target", lost)
    return sides[0], sides[1], names, selected if self._only else []

  def _may_lack(self, name: str) -> bool:
    return not self._selects(name) or any(match(name) for match in self._ignored)

  def _selects(self, name: str) -> bool:
    return not self._only or any(match(name) for match in self._only.values())

  def _check_only(self, names: Iterable[str]) -> None:
    """Raises NotFoundError for a pattern that selects nothing, which must be misspelt."""
    known = list(names)
    for pattern, match in self._only.items():
      if not any(map(match, known)):
        raise NotFoundError(f"Refit: only={pattern!r} matches no tensor of the source")

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
    only: list[str],
    verify: Verify,
    timeout: float,
  ) -> None:
    self._group, self._layouts = group, (source, target)
    self._options: dict[str, Any] = {
      "ignore": ignore, "only": only, "verify": verify, "timeout": timeout, "replan": True,
    }  # fmt: skip
    self._names = [local_names(layout, group.rank) for layout in self._layouts]
    self._known: list[dict[str, Any]] = []
    self._shards: list[Shards] = []
    self._session: _core.Session | None = None

  def _mine(self, tensors: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [
      {n: t for n, t in here.items() if n in names} for here, names in zip(tensors, self._names, strict=True)
    ]

  def _where(self, tensors: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, Any]]:
    return [{name: identity(tensor) for name, tensor in here.items()} for here in self._mine(tensors)]

  def prepare(self, tensors: Sequence[dict[str, torch.Tensor]]) -> None:
    self._shards, self._known = placed(self._mine(tensors)), self._where(tensors)
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
    """Tells the session where tensors are now, of both sides or, if it refuses them, of none."""
    now = self._where(tensors)
    if self._session is None or now == self._known:
      return
    shards = placed(self._mine(tensors))
    moved: dict[str, Any] = {}
    for k, key in enumerate(("source_tensors", "target_tensors")):
      if self._group.rank in self._layouts[k].ranks:
        moved[key] = shards[k].views
    self._session.update(**moved)
    self._shards, self._known = shards, now

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
