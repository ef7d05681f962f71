# SPDX-License-Identifier: Apache-2.0
"""Two models side by side: the engine's, and one that was loaded freshly.

Everything is reached that a forward pass can reach from a module: parameters, buffers, attributes (tensors, numbers, words),
lists and dicts of them, objects (quantisation methods, kernels) and the variables that functions keep. A pair of values is
looked at once; cycles end there.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from reshard.check._rules import TORCH_ATTRIBUTES, Rules

__all__ = ["MISSING", "PLAIN", "Place", "Walk"]

#: In the place of a value that only the other model has.
MISSING = type("Missing", (), {"__repr__": lambda _: "nothing"})()

PLAIN = (int, float, complex, bool, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, range)  # fmt: skip
# Reads both models' value of one place: (place, the engine's, the fresh one's).
Visit = Callable[["Place", Any, Any], None]


class Place:
  """Where a value is.

  module, owner  the path of the module that has it, and the module (the fresh one's)
  attribute      the way from the module
  kind           as of a Difference
  """

  __slots__ = ("attribute", "kind", "module", "owner")

  def __init__(self, module: str, owner: Any, attribute: str, kind: str) -> None:
    self.module, self.owner, self.attribute, self.kind = module, owner, attribute, kind

  def below(self, name: str, kind: str = "") -> Place:
    """A place that is reached from here."""
    return Place(self.module, self.owner, f"{self.attribute}.{name}" if self.attribute else name, kind or self.kind)

  @property
  def path(self) -> str:
    return f"{self.module}.{self.attribute}" if self.module else self.attribute


class Walk:
  """One pass over two models. `visit` sees tensors and plain values, and MISSING where only one model has something.

  Attributes: `ignored`, how many values each rule left out; `served`, the paths of what only the engine's model has.
  """

  def __init__(self, rules: Rules, visit: Visit) -> None:
    self._rules, self._visit = rules, visit
    self._seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # with the values, so that no id comes again
    self._registered: set[int] = set()  # modules that the walk comes to by their own paths
    self.ignored: dict[str, int] = {}
    self.served: list[str] = []

  def models(self, ours: torch.nn.Module, fresh: torch.nn.Module) -> None:
    """Walks both."""
    self._registered = {id(m) for m in fresh.modules()}
    self._module("", ours, fresh)

  def _module(self, path: str, ours: Any, fresh: Any) -> None:
    if self._met(ours, fresh):
      return
    place = Place(path, fresh, "", "structure")
    if type(ours) is not type(fresh):
      self._visit(place.below("<class>"), type(ours).__name__, type(fresh).__name__)
      return
    for kind, of in (("parameter", "_parameters"), ("buffer", "_buffers")):
      for name, a, b in _pairs(getattr(ours, of), getattr(fresh, of)):
        self._visit(Place(path, fresh, name, kind), MISSING if a is None else a, MISSING if b is None else b)
    mine, other = ({k: v for k, v in vars(m).items() if k not in TORCH_ATTRIBUTES} for m in (ours, fresh))
    for name, a, b in _pairs(mine, other):
      self._attribute(Place(path, fresh, name, "derived"), name, a, b)
    for name, a, b in _pairs(ours._modules, fresh._modules):
      if a is None and b is None:
        continue
      if not isinstance(a, torch.nn.Module) or not isinstance(b, torch.nn.Module):
        self._visit(place.below(name), a, b)
      else:
        self._module(f"{path}.{name}" if path else name, a, b)

  def _attribute(self, place: Place, name: str, ours: Any, fresh: Any) -> None:
    if rule := self._rules.of_attribute(name):
      self.ignored[rule] = self.ignored.get(rule, 0) + 1
    else:
      self._value(place, ours, fresh)

  def _value(self, place: Place, ours: Any, fresh: Any) -> None:
    for value in (ours, fresh):
      if rule := self._rules.of_value(value):
        self.ignored[rule] = self.ignored.get(rule, 0) + 1
        return
    ours, fresh = _as_tensor(ours), _as_tensor(fresh)
    if fresh is MISSING or (fresh is None and _has_state(ours)):
      self._only_ours(place, ours)
    elif isinstance(ours, (torch.Tensor, *PLAIN)) or isinstance(fresh, (torch.Tensor, *PLAIN)) or ours is MISSING:
      self._plain(place, ours, fresh)
    elif type(ours) is not type(fresh):
      self._visit(place.below("<class>", "structure"), type(ours).__name__, type(fresh).__name__)
    elif id(fresh) not in self._registered and not self._met(ours, fresh):
      self._inside(place, ours, fresh)

  def _plain(self, place: Place, ours: Any, fresh: Any) -> None:
    if not isinstance(ours, torch.Tensor) and not isinstance(fresh, torch.Tensor):
      plain = ours is not MISSING or isinstance(fresh, PLAIN)
      place = Place(place.module, place.owner, place.attribute, "number" if plain else "structure")
    self._visit(place, ours, fresh)

  def _only_ours(self, place: Place, ours: Any) -> None:
    """Notes what a fresh load does not have: an engine made it while it served."""
    if _has_state(ours) or place.kind != "derived":
      self.served.append(place.path)

  def _inside(self, place: Place, ours: Any, fresh: Any) -> None:
    if isinstance(ours, torch.nn.Module):
      del self._seen[id(ours), id(fresh)]
      self._module(place.path, ours, fresh)
    elif (reader := self._rules.reader_of(ours)) is not None:
      read = list(zip(reader(place.owner, ours), reader(place.owner, fresh), strict=True))
      if not read:
        rule = "memory of libraries that cannot be read"
        self.ignored[rule] = self.ignored.get(rule, 0) + 1
      for (name, a), (_, b) in read:
        self._visit(place.below(f"<{name}>", "native"), a, b)
    else:
      for name, a, b in _parts(ours, fresh):
        self._attribute(place.below(name), name, a, b)

  def _met(self, ours: Any, fresh: Any) -> bool:
    key = (id(ours), id(fresh))
    if key in self._seen:
      return True
    self._seen[key] = (ours, fresh)
    return False


def _has_state(value: Any) -> bool:
  """True for tensors and objects, which may hold some."""
  return value is not MISSING and not isinstance(value, PLAIN) and not (isinstance(value, list | tuple | dict | set) and not value)


def _as_tensor(value: Any) -> Any:
  """An array of numpy as the tensor that it is."""
  if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
    return torch.from_numpy(value)
  return value


def _pairs(ours: Any, fresh: Any) -> Iterator[tuple[str, Any, Any]]:
  """By name, in the order of the fresh model."""
  for name in [*fresh, *(name for name in ours if name not in fresh)]:
    yield str(name), ours.get(name, MISSING), fresh.get(name, MISSING)


def _parts(ours: Any, fresh: Any) -> Iterator[tuple[str, Any, Any]]:
  """What two values of one type hold, by name."""
  yield from _pairs(_held(ours), _held(fresh))


def _held(value: Any) -> dict[str, Any]:
  if isinstance(value, dict):
    return {str(k): v for k, v in value.items()}
  if isinstance(value, list | tuple):
    return {str(i): v for i, v in enumerate(value)}
  if isinstance(value, types.MethodType):
    return {"<self>": value.__self__}
  if isinstance(value, functools.partial):
    return {"<function>": value.func, **{f"<{i}>": v for i, v in enumerate(value.args)}, **value.keywords}
  if isinstance(value, types.FunctionType):
    return _variables(value)
  slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
  found = {name: getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)}
  return found | {str(k): v for k, v in getattr(value, "__dict__", {}).items()}


def _variables(function: types.FunctionType) -> dict[str, Any]:
  """The variables of a function's surroundings that it uses, and its defaults."""
  found: dict[str, Any] = {}
  for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
    try:
      found[f"<{name}>"] = cell.cell_contents
    except ValueError:  # not set yet
      continue
  found.update({f"<default {i}>": v for i, v in enumerate(function.__defaults__ or ())})
  return found
