# SPDX-License-Identifier: Apache-2.0
"""Tracing by element numbers: load numbers instead of values, and read back what lies where.

The parameters get storage of 64-bit integers. The engine's own loader is fed tensors in which every
element is its own number; it slices, permutes, stacks and copies them as it would values. What it
computes instead of copying shows as an impossible number: then the load is repeated with chosen
values, from which the function is recognised.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reshard.tracing import _compress
from reshard.tracing._compress import UNTOUCHED, ZERO, Numbering, boxes_of, count_of
from reshard.tracing._modules import (
  built,
  named_tensors,
  persistent,
  replace_storage,
  wanted_names,
)
from reshard.tracing._types import CONVERTIBLE, Local, RankTrace, TracingError, Weight

Load = Callable[[torch.nn.Module, Iterator[tuple[str, torch.Tensor]]], Any]

# The functions that reshard knows (reshard/base/value_map.h), and what undoes them.
_INVERSES: dict[str, Callable[[Any], Any]] = {
  "negated_exp": lambda y: np.log(np.where(y < 0, -y, np.nan)),
  "plus_one": lambda y: y - 1.0,
  "minus_one": lambda y: y + 1.0,
}
# A number that no element has.
_COMPUTED = -5
_COMPUTING = {"exp", "neg", "add", "sub", "rsub", "mul", "div", "pow", "log", "sqrt", "rsqrt"}


class _KeepDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
  """Casts of what is loaded do nothing, as numbers would not survive them. Remembers what is
  computed, for messages."""

  def __init__(self) -> None:
    super().__init__()  # type: ignore[no-untyped-call]
    self.weight = ""
    self.computed: dict[str, set[str]] = {}

  def __torch_dispatch__(
    self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
  ) -> Any:
    kwargs = dict(kwargs or {})
    name = func._schema.name.removeprefix("aten::")
    first: Any = args[0] if args else None
    wide = isinstance(first, torch.Tensor) and first.dtype in (torch.int64, torch.float64)
    if name == "copy_" and first.dtype == torch.int64 and args[1].is_floating_point():
      return first.fill_(_COMPUTED)  # rounding could make it another element's number
    if wide and name == "_to_copy":
      kwargs.pop("dtype", None)
    if wide and name == "view" and len(args) > 1 and isinstance(args[1], torch.dtype):
      return first.view(first.shape)
    if name.rstrip("_") in _COMPUTING and self.weight:
      self.computed.setdefault(self.weight, set()).add(name.rstrip("_"))
    return func(*args, **kwargs)


def trace_numbers(
  build: Callable[[int], Any], load: Load, weights: list[Weight], rank: int
) -> RankTrace:
  """Traces one rank. Memory: 8 bytes for each element that the rank holds."""
  numbering = Numbering(weights)
  mode = _KeepDtypes()

  def numbered() -> Iterator[tuple[str, torch.Tensor]]:
    for i, w in enumerate(weights):
      start = int(numbering.starts[i])
      positions = torch.arange(start, start + w.size, dtype=torch.int64, device="cpu")
      positions.mul_(Numbering.STEP).add_(Numbering.FIRST)
      mode.weight = w.name  # from here on the loader computes
      yield w.name, positions.reshape(w.shape)
      mode.weight = ""

  def fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(tensor.shape, UNTOUCHED, dtype=torch.int64, device="cpu")

  reader = _Reader(numbering)
  with built(build, rank, "cpu") as module:
    names = wanted_names(module, {w.name for w in weights})
    kinds = {name: t.dtype for name, t in named_tensors(module).items() if name in names}
    keep = persistent(module)
    replace_storage(module, fresh, names)
    _run(load, module, numbered(), mode)
    loaded = wanted_names(module, {w.name for w in weights})
    if created := sorted(loaded - kinds.keys()):
      raise TracingError(f"'{created[0]}': the loader creates it; trace it by recording")
    tensors = {n: t for n, t in named_tensors(module).items() if n in kinds}
    for name, tensor in tensors.items():
      reader.read(name, tensor, kinds[name], name in keep)
  if reader.computed:
    _trace_values(build, load, weights, rank, reader, mode, kinds)
  return RankTrace(reader.locals, reader.untouched)


def _run(
  load: Load, module: torch.nn.Module, tensors: Iterator[tuple[str, torch.Tensor]], mode: Any
) -> None:
  with torch.no_grad(), mode:
    load(module, tensors)


class _Reader:
  """What each tensor of the module was found to hold."""

  def __init__(self, numbering: Numbering) -> None:
    self.numbering = numbering
    self.locals: dict[str, Local] = {}
    self.untouched: dict[str, int] = {}
    self.computed: list[str] = []
    self.seen: set[int] = set()  # weights that some local tensor holds

  def read(self, name: str, tensor: torch.Tensor, dtype: torch.dtype, is_persistent: bool) -> None:
    if tensor.dtype != torch.int64:
      raise TracingError(
        f"'{name}': the loader replaced its storage by {tensor.dtype}; trace it by recording"
      )
    positions, possible = self.numbering.positions(tensor.detach().cpu().contiguous().numpy())
    if not possible:
      self.computed.append(name)
      return
    self.keep(name, positions, dtype, is_persistent)

  def keep(
    self,
    name: str,
    positions: _compress.Numbers,
    dtype: torch.dtype,
    is_persistent: bool,
    value_map: str = "identity",
  ) -> None:
    untouched = count_of(positions, UNTOUCHED)
    if untouched == positions.size:
      if is_persistent and untouched:
        self.untouched[name] = untouched
      return
    if untouched:
      self.untouched[name] = untouched
    shape = tuple(positions.shape)
    padding = count_of(positions, ZERO)
    try:
      parts, index_shape = boxes_of(positions, self.numbering)
    except TracingError as error:
      raise TracingError(f"'{name}': {error}") from None
    self.seen.update(part.weight for part in parts)
    kinds = {self.numbering.weights[p.weight].dtype for p in parts}
    local = Local(name, dtype, shape, tuple(index_shape), parts, padding, untouched, value_map)
    if len(kinds) == 1 and (kind := kinds.pop()) != dtype:
      bits = dtype not in CONVERTIBLE and kind.itemsize == dtype.itemsize
      local.dtype, local.casts = (kind, False) if bits else (dtype, True)
    self.locals[name] = local


def _trace_values(
  build: Callable[[int], Any],
  load: Load,
  weights: list[Weight],
  rank: int,
  reader: _Reader,
  mode: _KeepDtypes,
  kinds: dict[str, torch.dtype],
) -> None:
  """Recognises what the loader computed, by a load in which the weights that no local tensor holds
  unchanged have distinct values, and all others are zero."""
  chosen = [i for i in range(len(weights)) if i not in reader.seen]
  starts = np.concatenate([[0], np.cumsum([weights[i].size for i in chosen])]).astype(np.int64)
  table = _chosen_values(int(starts[-1]))
  first = {i: int(start) for i, start in zip(chosen, starts, strict=False)}

  def values() -> Iterator[tuple[str, torch.Tensor]]:
    for i, w in enumerate(weights):
      x = torch.zeros(w.shape, dtype=torch.float64, device="cpu")
      if i in first:
        x = torch.from_numpy(table[first[i] : first[i] + w.size].copy()).reshape(w.shape)
      yield w.name, x

  def fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(tensor.shape, math.nan, dtype=torch.float64, device="cpu")

  with built(build, rank, "cpu") as module:
    keep = persistent(module)
    replace_storage(module, fresh, set(kinds))
    _run(load, module, values(), mode)
    tensors = named_tensors(module)
    for name in reader.computed:
      held = tensors[name].detach().cpu().numpy().astype(np.float64)
      found = _recognise(held, table)
      if found is None:
        raise TracingError(_not_recognised(name, mode.computed))
      value_map, numbers = found
      # From numbers of chosen elements to positions of all.
      which = np.searchsorted(starts, numbers, side="right") - 1
      to_start = np.array([reader.numbering.starts[i] for i in chosen], dtype=np.int64)
      positions = np.where(
        numbers < 0, numbers, numbers - starts[which] + to_start[np.maximum(which, 0)]
      ).astype(np.int64)
      reader.keep(name, positions, kinds[name], name in keep, value_map)


def _chosen_values(total: int) -> Any:
  """Ascending values between 1/4 and 2, at uneven distances: no two runs of them are alike but for
  a constant."""
  uneven = np.random.default_rng(1).uniform(0.1, 0.9, total)
  return 0.25 + 1.75 * (np.arange(total) + uneven) / max(total, 1)


def _recognise(held: Any, table: Any) -> tuple[str, _compress.Numbers] | None:
  """The map, and the number of the chosen value behind each element."""
  untouched = np.isnan(held)
  if table.size == 0:
    return None
  for name, inverse in _INVERSES.items():
    with np.errstate(invalid="ignore"):
      x = inverse(held)
      after = np.clip(np.searchsorted(table, np.where(untouched, 0, x)), 1, max(table.size - 1, 1))
      after = np.minimum(after, table.size - 1)
      before = np.maximum(after - 1, 0)
      numbers = np.where(np.abs(table[before] - x) < np.abs(table[after] - x), before, after)
      near = np.abs(table[numbers] - x) < 1e-4 / table.size
    if (near | untouched).all():
      return name, np.where(untouched, UNTOUCHED, numbers).astype(np.int64)
  return None


def _not_recognised(name: str, computed: dict[str, set[str]]) -> str:
  seen = "; ".join(f"{', '.join(sorted(ops))} of '{w}'" for w, ops in list(computed.items())[:3])
  return (
    f"'{name}': the loader computes its values by none of the known maps (-exp(x), x + 1, x - 1)"
    + (f"; it was seen to compute {seen}" if seen else "")
  )
