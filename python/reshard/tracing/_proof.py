# SPDX-License-Identifier: Apache-2.0
"""The proof of a layout: load values with the engine's own loader, and compare every byte with what
the layout says.

A load is into memory that holds a pattern, so that what the loader leaves alone is seen, too. Two
loads with other values, into other patterns, show what depends on chance, on what was there, or on
values, where the layout has nothing.
Models that are too large for that are proved on a sample, or in passes: some local tensors and
their weights have memory then, and all others are on torch's meta device.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reshard import _core
from reshard.tracing._guard import Load, without_chance
from reshard.tracing._modules import (
  built,
  give_copies,
  named_tensors,
  replace_storage,
  wanted_names,
)
from reshard.tracing._types import TracingError, torch_dtype
from reshard.tracing._values import values_of

# The bytes of local tensors and weights up to which all of them are proved at once.
SMALL = 1 << 30
# The byte that fills memory before each of the loads.
_PATTERNS = (0xA5, 0)
_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
  "identity": lambda x: x,
  "negated_exp": lambda x: -torch.exp(x),
  "plus_one": lambda x: x + 1.0,
  "minus_one": lambda x: x - 1.0,
}
Contents = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Proof:
  """How many local tensors of all ranks were compared, of how many; none if it was skipped."""

  proved: int = 0
  of: int = 0

  def __str__(self) -> str:
    if not self.proved and self.of:
      return "not proved"
    if self.proved == self.of:
      return "proved with values"
    return f"proved with values on {self.proved} of {self.of} local tensors"

  def meets(self, wanted: bool | str) -> bool:
    """True if a caller that asks for `prove=wanted` need not ask again."""
    return not wanted or self.proved == self.of or (wanted != "whole" and self.proved > 0)


@dataclasses.dataclass(frozen=True)
class _Pass:
  """One load. None: all of the rank's."""

  locals: frozenset[str] | None = None
  weights: frozenset[str] | None = None


def prove(layout: _core.Layout, build: Callable[[int], Any], load: Load, whole: bool) -> Proof:
  """Proves a traced layout on all its ranks: all of it, or a sample of a large one.

  Raises TracingError with what differs, or if memory does not suffice.
  """
  proved = of = 0
  for rank in layout.ranks:
    all_of_them = {t.name for t in layout.local(rank)}
    passes = _passes(layout, rank, whole)
    try:
      said = _loads(layout, build, load, rank, passes)
    except Exception as error:
      if passes == [_Pass()] or _all_bytes(layout, rank) > _room():
        raise TracingError(
          f"rank {rank}: the loader fails with values, so the layout is not proved: {error!r}"
        ) from error
      # It cannot load some tensors with values and some without.
      passes = [_Pass()]
      said = _loads(layout, build, load, rank, passes)
    if said:
      raise TracingError(
        f"the loader does otherwise than its trace says, in {len(said)} places: {'; '.join(said[:4])}"
      )
    proved += len(all_of_them) if passes == [_Pass()] else sum(len(p.locals or ()) for p in passes)
    of += len(all_of_them)
  return Proof(proved, of)


def probe(
  layout: _core.Layout,
  build: Callable[[int], Any],
  load: Load,
  ranks: Iterable[int] | None = None,
) -> list[str]:
  """Compares a layout with what the engine's loader does to random values, byte by byte.

  `build` and `load` as of traced(); modules are built on the CPU with their own dtypes. `ranks`: by
  default all of the layout. Returns what differs, a line each; empty if nothing does. Where no
  weight goes there may be zeros, or what was there. Memory: a rank's module and one weight, as the
  loader needs them.
  """
  said: list[str] = []
  for rank in layout.ranks if ranks is None else ranks:
    said += _loads(layout, build, load, rank, [_Pass()])
  return said


def _loads(
  layout: _core.Layout, build: Callable[[int], Any], load: Load, rank: int, passes: list[_Pass]
) -> list[str]:
  said: list[str] = []
  for one in passes:
    rest: list[Contents] = []
    for draw in range(len(_PATTERNS)):
      found, others = _load(layout, build, load, rank, one, draw)
      rest.append(others)
      if found:
        return said + found
    for name in sorted(rest[0].keys() | rest[1].keys()):
      a, b = rest[0].get(name), rest[1].get(name)
      if a is None or b is None or not _same(a, b):
        said.append(f"rank {rank}: '{name}': depends on values, and the layout has it not")
  return said


def _load(
  layout: _core.Layout, build: Callable[[int], Any], load: Load, rank: int, one: _Pass, draw: int
) -> tuple[list[str], Contents]:
  """One load: what differs, and what the loader wrote into tensors that the layout does not have."""

  def weights() -> Iterator[tuple[str, torch.Tensor]]:
    for t in layout.tensors:
      if one.weights is None or t.name in one.weights:
        yield t.name, values_of(t, draw)
      else:
        yield t.name, torch.empty(
          tuple(t.stored_shape), dtype=torch_dtype(t.dtype.name.upper()), device="meta"
        )

  with built(build, rank, "cpu" if one.locals is None else "meta") as module:
    before = named_tensors(module)
    names = wanted_names(module, {t.name for t in layout.tensors})
    names |= {t.name for t in layout.local(rank)} & before.keys()
    chosen = names if one.locals is None else names & one.locals
    replace_storage(module, lambda t: _pattern(t, draw), chosen)
    replace_storage(module, lambda t: torch.empty_like(t, device="meta"), names - chosen)
    others = {n: t.detach().cpu().clone() for n, t in _with_values(module) if n not in names}
    give_copies(module, set(others))
    stay: Any = _StayOnMeta() if one.locals else contextlib.nullcontext()
    with torch.no_grad(), without_chance(), stay:
      load(module, weights())
    held = named_tensors(module)
    said = list(_differences(held, layout, rank, one, draw))
    known = {t.name for t in layout.local(rank)} | (names - chosen)
    rest = {}
    for name, tensor in _with_values(module):
      if name in known:
        continue
      if name not in names:
        # A buffer that the loader leaves alone says nothing: it may never have been set.
        if name not in others or not _same(tensor, others[name]):
          rest[name] = tensor.detach().cpu().clone()
      elif not torch.equal(_bytes(tensor), _bytes(_pattern(tensor, draw))):
        said.append(f"rank {rank}: '{name}': the loader writes it, and the layout has it not")
  return said, rest


class _StayOnMeta(TorchDispatchMode):
  """What has no values has none on any device."""

  def __init__(self) -> None:
    super().__init__()  # type: ignore[no-untyped-call]

  def __torch_dispatch__(
    self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
  ) -> Any:
    kwargs = dict(kwargs or {})
    if func is torch.ops.aten._to_copy.default and args[0].device.type == "meta":
      kwargs["device"] = torch.device("meta")
    return func(*args, **kwargs)


def _pattern(tensor: torch.Tensor, draw: int) -> torch.Tensor:
  made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
  if tensor.dtype == torch.bool:
    return made.fill_(draw == 0)
  made.reshape(-1).view(torch.uint8).fill_(_PATTERNS[draw])
  return made


def _flat(tensor: torch.Tensor) -> torch.Tensor:
  """The elements in row-major order, in storage that begins with them."""
  flat = tensor.detach().cpu().contiguous().reshape(-1)
  # A part of a larger tensor counts as contiguous, and a single element whatever its stride.
  if flat.storage_offset() != 0 or flat.stride(0) != 1:
    flat = flat.clone(memory_format=torch.contiguous_format)
  return flat


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
  return _flat(tensor).view(torch.uint8)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
  return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))


def _with_values(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
  for name, tensor in named_tensors(module).items():
    if tensor.device.type != "meta":
      yield name, tensor


def _differences(
  held: dict[str, torch.Tensor], layout: _core.Layout, rank: int, one: _Pass, draw: int
) -> Iterator[str]:
  tensors: Any = layout.tensors
  for local in layout.local(rank):
    if one.locals is not None and local.name not in one.locals:
      continue
    tensor = held.get(local.name)
    if tensor is None or tuple(tensor.shape) != tuple(local.shape):
      found = "nothing" if tensor is None else f"shape {list(tensor.shape)}"
      yield f"rank {rank}: '{local.name}': {list(local.shape)}, but the engine has {found}"
      continue
    if tensor.device.type == "meta":
      yield f"rank {rank}: '{local.name}': the loader gives it no values"
      continue
    dtype = torch_dtype(local.dtype.name.upper())
    if dtype.itemsize != tensor.dtype.itemsize:
      yield f"rank {rank}: '{local.name}': {dtype}, but the engine has {tensor.dtype}"
      continue
    flat = _flat(tensor)
    free = torch.ones(flat.numel(), dtype=torch.bool)
    of, values = None, torch.empty(0)
    for fragment in local.fragments:
      if fragment.tensor != of:  # stacked experts may be many fragments of one tensor
        of, whole = fragment.tensor, tensors[fragment.tensor]
        values = values_of(whole, draw).reshape(tuple(whole.shape))
      expected = _mapped(values[fragment.box.slices], local.map, dtype)
      place = [e - b for b, e in fragment.box], tuple(fragment.strides), fragment.offset
      free.as_strided(*place).fill_(False)
      if not _agree(flat.as_strided(*place), expected, local.map):
        yield f"rank {rank}: '{local.name}': other values than {fragment!r}"
        break
    else:
      if not _is_free(flat, free, _PATTERNS[draw]):
        yield f"rank {rank}: '{local.name}': values where the layout has padding"


def _mapped(values: torch.Tensor, value_map: str, dtype: torch.dtype) -> torch.Tensor:
  if dtype == values.dtype and value_map == "identity":
    return values
  return _MAPS[value_map](values.float()).to(dtype)


def _agree(found: torch.Tensor, expected: torch.Tensor, value_map: str) -> bool:
  if torch.equal(_bytes(found), _bytes(expected)):
    return True
  # Kernels of exp() for vectors and for single elements differ in the last bit.
  return value_map == "negated_exp" and torch.allclose(
    found.float(), expected.float(), rtol=torch.finfo(expected.dtype).eps * 2, atol=0
  )


def _is_free(flat: torch.Tensor, free: torch.Tensor, pattern: int) -> bool:
  """True if there are zeros, or what was there before, where the layout has padding."""
  if flat.dtype == torch.bool or not bool(free.any()):
    return True
  raw = _bytes(flat).reshape(flat.numel(), -1)[free]
  return bool(((raw == 0).all(1) | (raw == pattern).all(1)).all())


# -- what is proved of large models


def _all_bytes(layout: _core.Layout, rank: int) -> int:
  return sum(t.bytes for t in layout.local(rank)) + sum(t.bytes for t in layout.tensors)


def _room() -> int:
  """Half of the memory that the system can give."""
  try:
    with open("/proc/meminfo", encoding="ascii") as file:
      lines = dict(line.split(":", 1) for line in file)
    return int(lines["MemAvailable"].split()[0]) * 512
  except (OSError, KeyError, ValueError):
    return 4 * SMALL


def _sample(layout: _core.Layout, rank: int) -> list[str]:
  """The first and the last local tensor of each kind: names that differ in numbers only."""
  first: dict[Any, str] = {}
  last: dict[Any, str] = {}
  for local in layout.local(rank):
    kind = re.sub(r"\d+", "#", local.name), tuple(local.shape), local.dtype.name
    first.setdefault(kind, local.name)
    last[kind] = local.name
  return list(dict.fromkeys([*first.values(), *last.values()]))


def _passes(layout: _core.Layout, rank: int, whole: bool) -> list[_Pass]:
  total, room = _all_bytes(layout, rank), _room()
  if total <= SMALL or (whole and total <= room):
    return [_Pass()]
  sizes = {t.name: t.bytes for t in layout.tensors}
  own = {t.name: t.bytes for t in layout.local(rank)}
  weights = {t.name: frozenset(f.tensor for f in t.fragments) for t in layout.local(rank)}
  packed: list[list[str]] = []
  used = room + 1
  for name in own if whole else _sample(layout, rank):
    needs = own[name] + sum(sizes[weight] for weight in weights[name])
    if needs > room:
      raise TracingError(
        f"rank {rank}: '{name}' and its weights have {needs / 2**30:.1f} GiB, which is more than half "
        "of the memory here, so it cannot be proved; prove=False takes the layout without proof"
      )
    if used + needs > room:
      packed.append([])
      used = 0
    packed[-1].append(name)
    used += needs
  return [
    _Pass(frozenset(some), frozenset().union(*(weights[name] for name in some))) for some in packed
  ]
