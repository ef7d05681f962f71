# SPDX-License-Identifier: Apache-2.0
"""Fresh loads of an engine's model, and the check against them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from reshard.check._compare import Found, compare, differing, same, says
from reshard.check._report import Report
from reshard.check._rules import Rules
from reshard.check._walk import Place, Walk

__all__ = ["CONSTRUCTOR", "Fresh", "check"]

#: The step before all others.
CONSTRUCTOR = "the constructor"

#: What new memory of the first and of the second fresh load holds.
_PATTERNS = (0x5A, 0xA5)
_EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}


@dataclass(frozen=True)
class Fresh:
  """How an engine makes a model.

  build  gives the model as the engine's constructor makes it; what it sets up lasts until the check is done
  steps  what the engine does with it then, in order, by name. Called once for each fresh load: a step that reads weights reads
         them again
  """

  build: Callable[[], AbstractContextManager[torch.nn.Module]]
  steps: Sequence[tuple[str, Callable[[torch.nn.Module], None]]]


def check(
  model: torch.nn.Module,
  fresh: Fresh,
  rules: Rules | None = None,
  rank: int = 0,
  anyone: Callable[[bool], bool] = bool,
) -> Report:
  """Compares a live model with one that is loaded freshly.

  model   borrowed, and not changed
  rank    of the engine, for the report
  anyone  collective over ranks that load together: whether it is true on one of them

  The fresh model takes as much memory as `model` while it is compared. If something differs, a second is loaded, into memory
  that held other bytes: what differs between two fresh loads is not set by anything, and is left out.

  Errors: those of `fresh`.
  """
  rules = rules or Rules()
  with torch.no_grad():
    with _Filled(_PATTERNS[0]), fresh.build() as made:
      for _, step in fresh.steps:
        step(made)
      report, found = compare(model, made, rules)
      found = [_kept(one) for one in found]
      del made
    report.ranks = [rank]
    if anyone(bool(found)):
      _Second(model, fresh, rules, found).judge(report, rank)
  return report


def _kept(found: Found) -> Found:
  """The same without the model: only the values that differ stay in memory."""
  found.place = Place(found.place.module, None, found.place.attribute, found.place.kind)
  return found


class _Filled(TorchFunctionMode):
  """New memory holds a pattern, so that what nothing sets is never equal by chance."""

  def __init__(self, pattern: int) -> None:
    super().__init__()
    self._pattern = pattern

  def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
    made = func(*args, **(kwargs or {}))
    if func in _EMPTY and made.numel() and made.layout == torch.strided and made.device.type == "cpu":
      with contextlib.suppress(RuntimeError):  # a dtype that cannot be seen as bytes
        made.detach().view(-1).view(torch.uint8).fill_(self._pattern)
    return made


@dataclass
class _Second:
  """A second fresh load, which tells what nothing sets, and which step made what."""

  model: torch.nn.Module
  fresh: Fresh
  rules: Rules
  found: list[Found]
  steps: dict[tuple[str, str], str] = field(default_factory=dict)

  def judge(self, report: Report, rank: int) -> None:
    """Adds to the report what differs, or that nothing sets it."""
    values: dict[tuple[str, str], Any] = {}
    with _Filled(_PATTERNS[1]), self.fresh.build() as made:
      values = self._note(made, values, CONSTRUCTOR)
      for name, step in self.fresh.steps:
        step(made)
        values = self._note(made, values, name)
    for one in self.found:
      key = (one.place.kind, one.place.path)
      unset = _unset(one.fresh, values.get(key, one.fresh))
      if isinstance(unset, torch.Tensor) and isinstance(one.ours, torch.Tensor):
        wrong = one.ours.shape != one.fresh.shape or one.ours.dtype != one.fresh.dtype or one.ours.stride() != one.fresh.stride()
        if not wrong and not bool((differing(one.ours, one.fresh) & ~unset).any()):
          report.unset.append(one.place.path)
          continue
        report.differences.append(says(one, self.steps.get(key, ""), rank, unset))
      elif unset is True:
        report.unset.append(one.place.path)
      else:
        report.differences.append(says(one, self.steps.get(key, ""), rank))

  def _note(self, made: torch.nn.Module, before: Mapping[tuple[str, str], Any], step: str) -> dict[tuple[str, str], Any]:
    """What the model has at the places that were found; those that are new or have changed were made by this step."""
    wanted = {(one.place.kind, one.place.path) for one in self.found}
    now: dict[tuple[str, str], Any] = {}

    def visit(place: Place, _: Any, value: Any) -> None:
      key = (place.kind, place.path)
      if key in wanted:
        now[key] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        if key not in before or not same(before[key], value):
          self.steps[key] = step + _method(place)

    Walk(self.rules, visit).models(made, made)
    return now


def _method(place: Place) -> str:
  """The class whose step it was, as far as a module says so."""
  owner = place.owner
  method = getattr(owner, "quant_method", None)
  return f" of {type(owner).__name__}" + (f" ({type(method).__name__})" if method is not None else "")


def _unset(first: Any, second: Any) -> Any:
  """What two fresh loads do not agree in: the bytes of a tensor, or whether it is a value that differs."""
  if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
    if first.shape == second.shape and first.dtype == second.dtype and not first.is_meta:
      return differing(first, second)
    return False
  return not same(first, second)
