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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map

from reshard.tracing import _compress
from reshard.tracing import _operations as ops_of
from reshard.tracing._casts import KNOWN_MAPS
from reshard.tracing._compress import UNTOUCHED, ZERO, Numbering, boxes_of, count_of
from reshard.tracing._guard import Guard, Load, run, storage_of, unseen
from reshard.tracing._modules import (
  built,
  give_copies,
  named_tensors,
  persistent,
  replace_storage,
  wanted_names,
)
from reshard.tracing._operations import tensors_in
from reshard.tracing._types import (
  CONVERTIBLE,
  Local,
  RankTrace,
  TracingError,
  Weight,
  refusal,
)

# The functions that reshard knows (reshard/base/value_map.h), and what undoes them.
_INVERSES: dict[str, Callable[[Any], Any]] = {
  "negated_exp": lambda y: np.log(np.where(y < 0, -y, np.nan)),
  "plus_one": lambda y: y - 1.0,
  "minus_one": lambda y: y + 1.0,
}
_FUNCTIONS = frozenset(["exp", "exp_", "neg", "neg_"])
_SHIFTS = frozenset(["add 1", "add -1", "sub 1", "sub -1"])
# Here memory is real, and whatever sees it sees numbers.
_ESCAPES = ops_of.ESCAPES | {"untyped_storage", "storage", "_typed_storage", "__deepcopy__"}


class _Numbers(Guard):
  """Lets a loader move numbers, and do what known maps consist of. Casts of what is loaded do
  nothing, as numbers would not survive them.

  held  the dtype of numbers, or of the values that are chosen to recognise a map
  """

  def __init__(self, held: torch.dtype) -> None:
    super().__init__()
    self.held = held
    self.impossible: float = -5 if held == torch.int64 else 1e30  # what no element is
    self.nothing: float = UNTOUCHED if held == torch.int64 else math.nan
    self.ops: dict[str, list[str]] = {}  # by weight
    self._held: dict[int, StorageWeakRef] = {}

  def hold(self, *tensors: torch.Tensor) -> None:
    """Notes that tensors have numbers."""
    for tensor in tensors:
      if tensor.layout != torch.strided:
        self.refuse(f"'{self.loading}': the loader makes a tensor of layout {tensor.layout} of it")
      self._held[storage_of(tensor)] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

  def follows(self, tensor: torch.Tensor) -> bool:
    found = self._held.get(storage_of(tensor))
    return found is not None and not found.expired()  # type: ignore[no-untyped-call]

  def name_of(self, tensor: torch.Tensor) -> str:
    return self.loading

  def operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = ops_of.name_of(func)
    given = list(tensors_in((args, kwargs)))
    inputs = [t for t in given if self.follows(t)]
    dtype = kwargs.get("dtype") or (given[0].dtype if given else torch.get_default_dtype())
    if name in ops_of.NEW and (inputs or dtype.is_floating_point):
      kwargs |= {"dtype": self.held, "device": torch.device("cpu")}
      out = func(*args, **kwargs)
      if name not in ops_of.NEW_ZEROS:
        out.fill_(self.nothing if name in ops_of.NEW_EMPTY else self.impossible)
      self.hold(out)
      return out
    if not inputs:
      return self.of_no_weight(func, name, args, kwargs, given)
    if name in ops_of.QUESTIONS:
      return func(*args, **kwargs)
    written = ops_of.written_by(func, args, kwargs)
    self.check(func, name, args, kwargs, inputs, written)
    out = self.done(func, name, args, kwargs)
    self.hold(*(t for t in (*tensors_in((out,)), *written) if t.layout == torch.strided))
    return out

  def of_no_weight(
    self, func: Any, name: str, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]
  ) -> Any:
    out = func(*args, **kwargs)
    outs, written = list(tensors_in((out,))), ops_of.written_by(func, args, kwargs)
    self.note_made(outs, () if name == "lift_fresh" else given)
    self.note_constants(written, name)
    if ops_of.is_random(func):
      self.hold(*(t for t in outs if self.was_made(t)))
    return out

  def check(
    self,
    func: Any,
    name: str,
    args: Any,
    kwargs: dict[str, Any],
    inputs: list[torch.Tensor],
    written: list[torch.Tensor],
  ) -> None:
    """Refuses what does not move numbers, and what moves them where none can be read."""
    if ops_of.answers(func):
      self.reads(name, inputs[0])
    for tensor in written:
      if self.follows(tensor):
        continue
      if storage_of(tensor) in self.tables:
        which = self.tables[storage_of(tensor)][0]
        raise TracingError(f"loads buffer '{which}' of {tensor.dtype}, which recording follows")
      if not self.was_made(tensor):
        self.outside(name, self.loading)
      if tensor.dtype != self.held:
        raise TracingError(f"loads into memory of {tensor.dtype}, which recording follows")
    if name in ops_of.VIEWS or name in ops_of.COPIES or name in ("copy_", "fill_", "zero_"):
      return
    if ops_of.is_move(func, args, kwargs):
      values = ops_of.bound(func, args, kwargs)
      if any(self.follows(t) for t in tensors_in([values[i] for i in ops_of.MOVES[name]])):
        self.reads(name, inputs[0])
      return
    op = name if name in _FUNCTIONS else ops_of.shift_of(func, args, kwargs)
    if op in _FUNCTIONS or (op in _SHIFTS and len(inputs) == 1):
      self.ops.setdefault(self.loading, []).append(op.rstrip("_"))
      return
    self.refuse(
      f"'{self.loading}': the loader computes {op or name} of '{self.loading}', which is none of the "
      f"known maps ({KNOWN_MAPS})"
    )

  def done(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Does a move, with a number that no element has for each value that is no weight's."""
    first: Any = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("self")
    if name == "_to_copy":
      kwargs.pop("dtype", None)
      kwargs.pop("device", None)
    elif name == "_pin_memory":
      return first.clone()
    elif name == "view" and len(args) > 1 and isinstance(args[1], torch.dtype):
      return first.view(first.shape)
    elif name == "fill_" and not (isinstance(args[1], torch.Tensor) and self.follows(args[1])):
      return first.fill_(0 if _is_zero(args[1]) else self.impossible)
    elif name == "copy_" and not self.follows(args[1]):
      return first.fill_(0 if _is_zero(args[1]) else self.impossible)
    elif name == "copy_" and args[1].is_floating_point() and first.dtype == torch.int64:
      return first.fill_(self.impossible)  # rounding could make it another element's number
    elif ops_of.is_move(func, args, kwargs):
      args, kwargs = self.with_impossible(func, name, args, kwargs)
    return func(*args, **kwargs)

  def with_impossible(
    self, func: Any, name: str, args: Any, kwargs: dict[str, Any]
  ) -> tuple[Any, dict[str, Any]]:
    def impossible(value: Any) -> Any:
      if not isinstance(value, torch.Tensor) or self.follows(value):
        return value
      return torch.full_like(value, 0 if _is_zero(value) else self.impossible, dtype=self.held)

    where, filler = ops_of.MOVES[name], ops_of.FILLERS.get(name.rstrip("_"))
    args = list(args)
    for i, value in enumerate(args):
      if i == filler and ops_of.is_number(value):
        args[i] = 0 if value == 0 else self.impossible
      elif i not in where:
        args[i] = tree_map(impossible, value)
    names = [a.name for a in func._schema.arguments]
    for key, value in kwargs.items():
      if key == "value" and ops_of.is_number(value):
        kwargs[key] = 0 if value == 0 else self.impossible
      elif names.index(key) not in where and key != "out":
        kwargs[key] = tree_map(impossible, value)
    return args, kwargs


def _is_zero(value: Any) -> bool:
  if isinstance(value, torch.Tensor):
    return not bool(value.count_nonzero())
  return bool(value == 0)


def trace_numbers(
  build: Callable[[int], Any], load: Load, weights: list[Weight], rank: int
) -> RankTrace:
  """Traces one rank. Memory: 8 bytes for each element that the rank holds."""
  numbering = Numbering(weights)
  mode = _Numbers(torch.int64)

  def numbered() -> Iterator[tuple[str, torch.Tensor]]:
    for i, w in enumerate(weights):
      start = int(numbering.starts[i])
      mode.loading = w.name
      with unseen():
        positions = torch.arange(start, start + w.size, dtype=torch.int64, device="cpu")
        positions.mul_(Numbering.STEP).add_(Numbering.FIRST)
        numbers = positions.reshape(w.shape)
        mode.hold(numbers)
      yield w.name, numbers

  def fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(tensor.shape, UNTOUCHED, dtype=torch.int64, device="cpu")

  reader = _Reader(numbering, mode)
  with built(build, rank, "cpu") as module:
    names = wanted_names(module, {w.name for w in weights})
    kinds = {name: t.dtype for name, t in named_tensors(module).items() if name in names}
    keep = persistent(module)
    replaced = _prepare(module, mode, fresh, names)
    run(mode, load, module, numbered(), _ESCAPES)
    for name, tensor in named_tensors(module).items():
      if name in kinds:
        reader.read(name, tensor, kinds[name], name in keep)
      elif name not in replaced or mode.follows(tensor):
        raise TracingError(f"'{name}': the loader creates it; trace it by recording")
    constants = {n: op for n, op in mode.constants.items() if n in keep}
  if reader.computed:
    _trace_values(build, load, weights, rank, reader, kinds)
  return RankTrace(reader.locals, reader.untouched, constants)


def _prepare(
  module: torch.nn.Module, mode: _Numbers, fresh: Any, names: set[str]
) -> set[str]:
  """Gives the module's tensors storage for a load. The names of those that keep their values."""
  replace_storage(module, fresh, names)
  tables = {n for n, t in named_tensors(module).items() if t.device.type != "meta"} - names
  give_copies(module, tables)
  for name, tensor in named_tensors(module).items():
    if name in names:
      mode.hold(tensor)
    else:
      mode.tables[storage_of(tensor)] = (name, tensor)
  return tables


class _Reader:
  """What each tensor of the module was found to hold."""

  def __init__(self, numbering: Numbering, mode: _Numbers) -> None:
    self.numbering, self.mode = numbering, mode
    self.locals: dict[str, Local] = {}
    self.untouched: dict[str, int] = {}
    self.computed: list[str] = []
    self.seen: set[int] = set()  # weights that some local tensor holds

  def read(self, name: str, tensor: torch.Tensor, dtype: torch.dtype, is_persistent: bool) -> None:
    if tensor.dtype != torch.int64 or not self.mode.follows(tensor):
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
    elif len(kinds) > 1:
      local.casts = kinds <= set(CONVERTIBLE)
    self.locals[name] = local


def _trace_values(
  build: Callable[[int], Any],
  load: Load,
  weights: list[Weight],
  rank: int,
  reader: _Reader,
  kinds: dict[str, torch.dtype],
) -> None:
  """Recognises what the loader computed, by a load in which the weights that no local tensor holds
  unchanged have distinct values, and all others are zero."""
  chosen = [i for i in range(len(weights)) if i not in reader.seen]
  starts = np.concatenate([[0], np.cumsum([weights[i].size for i in chosen])]).astype(np.int64)
  table = _chosen_values(int(starts[-1]))
  first = {i: int(start) for i, start in zip(chosen, starts, strict=False)}
  mode = _Numbers(torch.float64)

  def values() -> Iterator[tuple[str, torch.Tensor]]:
    for i, w in enumerate(weights):
      mode.loading = w.name
      with unseen():
        x = torch.zeros(w.shape, dtype=torch.float64, device="cpu")
        if i in first:
          x = torch.from_numpy(table[first[i] : first[i] + w.size].copy()).reshape(w.shape)
        mode.hold(x)
      yield w.name, x

  def fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(tensor.shape, math.nan, dtype=torch.float64, device="cpu")

  with built(build, rank, "cpu") as module:
    keep = persistent(module)
    _prepare(module, mode, fresh, set(kinds))
    run(mode, load, module, values(), _ESCAPES)
    tensors = named_tensors(module)
    for name in reader.computed:
      held = tensors[name].detach().cpu().numpy().astype(np.float64)
      found = _recognise(held, table)
      if found is None:
        seen = "; ".join(f"{', '.join(ops)} of '{w}'" for w, ops in list(mode.ops.items())[-3:])
        raise refusal(
          f"'{name}': the loader computes its values by none of the known maps ({KNOWN_MAPS}); it was "
          f"seen to compute {seen or 'nothing'}"
        )
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
