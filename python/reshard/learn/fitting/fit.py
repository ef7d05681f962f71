# SPDX-License-Identifier: Apache-2.0
"""From what ranks hold to a rule: which tensors make a local one, how they lie in it, how it is cut.

A rule is fitted to what was seen at tensor parallel sizes only, in models of different sizes. What
it says is a guess: `learn` has it predict.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from reshard.learn.fitting.evidence import Held, Piece, Sight, Unfit, filled, fixed_numbers, numbers_in, skeleton
from reshard.learn.fitting.intervals import (
  Interval, ascending_runs, intervals_of, periodic, rows_at, rows_of, share_of, shared_by_two,
)  # fmt: skip
from reshard.learn.fitting.terms import Terms

_MULTIPLES = (512, 256, 128, 64, 32, 16, 8, 4, 2)


@dataclasses.dataclass(frozen=True)
class Seen:
  """A local tensor of a kind, in one sight: what each of its ranks holds."""

  sight: Sight
  name: str
  ranks: Mapping[int, Held]

  @property
  def tp(self) -> int:
    return self.sight.sizes.get("tp", 1)


def kinds(sights: Sequence[Sight]) -> dict[str, list[Seen]]:
  """The local tensors of all sights, by their names without numbers, in the order of the first."""
  found: dict[str, list[Seen]] = {}
  for sight in sights:
    by_name: dict[str, dict[int, Held]] = {}
    for rank, held in sight.ranks.items():
      for name, local in held.items():
        by_name.setdefault(name, {})[rank] = local
    for name, ranks in by_name.items():
      found.setdefault(skeleton(name), []).append(Seen(sight, name, ranks))
  return found


# -- which tensors, by name


@dataclasses.dataclass(frozen=True)
class Source:
  """The tensors of a part, by name: a skeleton, and what each '#' of it is: the position of the equal
  number in the local tensor's name, or None if it counts along a new dimension, or a fixed text."""

  skeleton: str
  bound: tuple[int | str | None, ...]

  @property
  def match(self) -> str:
    return filled(self.skeleton, [b if isinstance(b, str) else "#" for b in self.bound])

  @property
  def each(self) -> int:
    """The wildcard that counts, from 1; 0: none."""
    wild = [b for b in self.bound if not isinstance(b, str)]
    return wild.index(None) + 1 if None in wild else 0

  @property
  def order(self) -> list[int]:
    """Of the wildcards that are left: the position in the local tensor's name."""
    return [b for b in self.bound if isinstance(b, int)]

  @property
  def plain_name(self) -> str:
    """The canonical name, with its wildcards numbered as rules do."""
    places = iter(range(1, len(self.bound) + 1))
    return filled(self.skeleton, [b if isinstance(b, str) else f"${next(places)}" for b in self.bound])


def sources(kind: str, seen: Sequence[Seen]) -> dict[str, Source]:
  """By skeleton of a canonical name."""
  free = [at for at, number in enumerate(fixed_numbers(kind)) if number is None]
  rows: dict[str, list[tuple[tuple[int, ...], list[tuple[int, ...]]]]] = {}
  for one in seen:
    local = numbers_in(one.name)
    for held in one.ranks.values():
      for key, pieces in _by_source(held).items():
        rows.setdefault(key, []).append((local, [numbers_in(p.tensor) for p in pieces]))
  return {
    key: Source(key, tuple(_bound(some, i, free) for i in range(len(some[0][1][0]))))
    for key, some in rows.items()
  }


def _bound(
  rows: Sequence[tuple[tuple[int, ...], list[tuple[int, ...]]]], at: int, free: Sequence[int]
) -> int | str | None:
  """`free`: the positions of the local tensor's numbers that its kind does not fix."""
  if any(len({numbers[at] for numbers in row}) > 1 for _, row in rows):
    return None
  for i in free:
    if all(local[i] == row[0][at] for local, row in rows):
      return i
  fixed = {row[0][at] for _, row in rows}
  if len(fixed) == 1:
    return str(fixed.pop())
  raise Unfit("its number is none of its tensors'")


# -- how they lie


@dataclasses.dataclass
class Section:
  """A part of the local tensor.

  dims   dimension i of the tensor is dims[i] of the section, without that of `each`
  at     where it begins in the local tensor, on rank 0
  cut    the dimension of the tensor that tensor parallelism cuts
  dim    of the tensor: the one of `takes`
  takes  (begin, end, period) of each model; None: whole
  rule   the keys of the cut
  """

  source: Source
  dims: tuple[int, ...]
  at: tuple[int, ...]
  cut: int | None
  dim: int | None
  takes: list[tuple[int, int, int]] | None
  rule: dict[str, Any] = dataclasses.field(default_factory=dict)


class Takes(NamedTuple):
  """What is taken of the tensors of a source in one model.

  dim      the dimension that is taken apart
  cut      the one that is cut
  takes    (begin, end, period)
  are_cut  whether ranks share each of `takes` where something is cut; they have others whole
  """

  dim: int | None
  cut: int | None
  takes: list[tuple[int, int, int]]
  are_cut: list[bool]


def _by_source(held: Held) -> dict[str, list[Piece]]:
  found: dict[str, list[Piece]] = {}
  for piece in held.pieces:
    found.setdefault(skeleton(piece.tensor), []).append(piece)
  return found


def _only(old: int | None, new: int, what: str) -> int:
  if old is not None and old != new:
    raise Unfit(f"two dimensions are {what}")
  return new


class Kind:
  """Fits one rule to a kind of local tensors."""

  def __init__(self, name: str, seen: Sequence[Seen], terms: Terms) -> None:
    self.name, self.seen, self.terms = name, seen, terms
    self.sources = sources(name, seen)
    #: By model and tp, the first of the kind.
    self.models: dict[int, dict[int, Seen]] = {}
    for one in seen:
      if set(one.sight.sizes) <= {"tp"}:
        self.models.setdefault(one.sight.model, {}).setdefault(one.tp, one)
    if not self.models or any(not {1, 2} <= set(model) for model in self.models.values()):
      raise Unfit("it was not seen at tp 1 and 2")
    self.sections = [section for key in self.sources for section in self._sections(key)]

  def rule(self) -> dict[str, Any]:
    """Raises Unfit."""
    first = self.seen[0].ranks[min(self.seen[0].ranks)]
    if not self.sections:
      raise Unfit("nothing is loaded into it")
    stack = self._stack()
    for section in self.sections:
      self._choose_cut(section)
    parts = [self._part(section) for section in self.sections]
    out = parts[0]
    name, source = self._name(), self.sections[0].source
    if len(parts) > 1 or source.each or name != source.plain_name:
      out["name"] = name
    if len(parts) > 1:
      out["with"] = parts[1:]
    if stack:
      out["stack"] = stack
    # Engines are built in BF16: another dtype is the module's own.
    if {held.dtype for one in self.seen for held in one.ranks.values()} == {"F32"}:
      out["dtype"] = "float32"
    if first.map != "identity":
      out["map"] = first.map
    if first.merged:
      out["merged"] = list(first.merged)
    return out

  def _name(self) -> str:
    order = self.sections[0].source.order
    if any(s.source.order != order for s in self.sections):
      raise Unfit("its tensors count in different orders")
    numbers = [numbers_in(one.name) for one in self.seen]
    texts = []
    for i in range(len(numbers[0])):
      fixed = {n[i] for n in numbers}
      if i not in order and len(fixed) > 1:
        raise Unfit("its number is none of its tensors'")
      texts.append(f"${order.index(i) + 1}" if i in order else str(fixed.pop()))
    return filled(skeleton(self.name), texts)

  def _stack(self) -> int:
    """Puts the sections in their order, and returns the dimension along which they lie."""
    if len(self.sections) == 1:
      return 0
    places = [s.at for s in self.sections]
    apart = [d for d in range(len(places[0])) if len({at[d] for at in places}) == len(places)]
    if len(apart) != 1:
      raise Unfit("its parts do not follow each other along one dimension")
    self.sections.sort(key=lambda s: s.at[apart[0]])
    return apart[0]

  # The sections of a source: its tensors whole, or pieces of them that are cut on their own.

  def _sections(self, key: str) -> Iterator[Section]:
    source = self.sources[key]
    dim = cut = None
    takes: list[list[tuple[int, int, int]]] = []
    are_cut: list[bool] = []
    for i, model in enumerate(self.models.values()):
      here = self._takes(key, model)
      if i and (here.dim, here.cut, here.are_cut) != (dim, cut, are_cut):
        raise Unfit("it lies otherwise in models of other sizes")
      dim, cut, are_cut = here.dim, here.cut, here.are_cut
      takes = [[*old, new] for old, new in zip(takes or [[] for _ in here.takes], here.takes, strict=True)]
    model = next(iter(self.models.values()))
    pieces = _by_source(model[1].ranks[0])[key]
    shift = 1 if source.each else 0
    dims = tuple(d - shift for d in pieces[0].dims)
    if sorted(dims) != list(range(len(dims))) or any(p.dims != pieces[0].dims for p in pieces):
      raise Unfit("its dimensions are not those of its tensors")
    places = self._places(_by_source(model[2].ranks[0])[key], dim, len(takes))
    for take, at, is_cut in zip(takes, places, are_cut, strict=True):
      whole = dim is None or take == [(0, e, e) for e in self._extents(key, dim)]
      yield Section(source, dims, at, cut if is_cut else None, None if whole else dim, None if whole else take)

  def _extents(self, key: str, dim: int) -> list[int]:
    """Of the tensors along a dimension, in each model."""
    return [self._shape(key, model[1])[dim] for model in self.models.values()]

  @staticmethod
  def _shape(key: str, one: Seen) -> tuple[int, ...]:
    return one.sight.shapes[_by_source(one.ranks[min(one.ranks)])[key][0].tensor]

  @staticmethod
  def _places(pieces: Sequence[Piece], dim: int | None, count: int) -> list[tuple[int, ...]]:
    """Where the sections of a source begin on rank 0 of two."""
    ordered = sorted(pieces, key=lambda p: p.at)
    if count == 1 or dim is None:
      return [ordered[0].at]
    each: dict[Interval, Piece] = {}  # of a tensor with all experts, each is a piece
    for p in sorted((p for p in ordered if p.tensor == ordered[0].tensor), key=lambda p: p.at[p.dims[dim]]):
      each.setdefault((p.begin[dim], p.end[dim]), p)
    of_one = list(each.values())
    runs = ascending_runs([(p.begin[dim], p.end[dim]) for p in of_one])
    if len(runs) != count:  # they ascend: sections without a period
      return [p.at for p in of_one[:count]]
    firsts = [sum(len(run) for run in runs[:k]) for k in range(count)]
    return [of_one[k].at for k in firsts]

  def _takes(self, key: str, model: Mapping[int, Seen]) -> Takes:
    alone = _by_source(model[1].ranks[0])[key]
    halves = [_by_source(model[2].ranks[r]).get(key, []) for r in (0, 1)]
    if not all(halves):
      raise Unfit("a rank has none of it")
    apart = cut = None
    takes = [(0, 0, 0)]
    are_cut = [True]
    for d, extent in enumerate(self._shape(key, model[1])):
      if self._is_padded(model[1], key, d):
        cut = _only(cut, d, "cut") if self._shares_padded(model[2], alone[0], d, extent) else cut
        continue
      one, two = intervals_of(alone, d), [intervals_of(half, d) for half in halves]
      if two == [one, one]:
        found, shared = [periodic(run, extent) for run in ascending_runs(one)], None
      else:
        cut = _only(cut, d, "cut")
        found, shared = shared_by_two(one, two, extent)
      if found != [(0, extent, extent)]:
        apart = _only(apart, d, "taken apart")
        takes, are_cut = found, shared or [True] * len(found)
    if apart is not None:
      return Takes(apart, cut, takes, are_cut)
    shape = self._shape(key, model[1])
    if not shape:
      return Takes(None, None, takes, are_cut)
    dim = cut if cut is not None else 0
    return Takes(dim, cut, [(0, shape[dim], shape[dim])], are_cut)

  def _is_padded(self, alone: Seen, key: str, dim: int) -> bool:
    """True if the local tensor of one source has more rows than its tensors."""
    pieces = _by_source(alone.ranks[0])[key]
    rows = alone.ranks[0].shape[pieces[0].dims[dim]]
    return len(self.sources) == 1 and rows > sum(e - b for b, e in intervals_of(pieces, dim))

  @staticmethod
  def _shares_padded(two: Seen, piece: Piece, dim: int, extent: int) -> bool:
    """True if two ranks share the padded rows, False if both have all."""
    rows = two.ranks[0].shape[piece.dims[dim]]
    shares = [(min(r * rows, extent), min((r + 1) * rows, extent)) for r in (0, 1)]
    held = [[(p.begin[dim], p.end[dim]) for p in two.ranks[r].pieces] for r in (0, 1)]
    if held == [[(0, extent)]] * 2:
      return False
    if held != [[shares[0]], [shares[1]]]:
      raise Unfit("two ranks do not hold a half each of its padded rows")
    return True

  # How ranks share what is cut: seen where there are more ranks than units.

  def _choose_cut(self, section: Section) -> None:
    if section.cut is None:
      return
    extents = self._cut_extents(section)
    if self._agree(section, extents, None):
      return
    for text, counts in self.terms.counts():
      fits = all(e % c == 0 for e, c in zip(extents, counts, strict=True))
      if fits and self._agree(section, extents, counts):
        section.rule = {"rule": "spread", "granule": f"extent / {text}"}
        return
    raise Unfit("no known rule says how more ranks share it")

  def _cut_extents(self, section: Section) -> list[int]:
    """Of the section along the cut dimension, in each model."""
    assert section.cut is not None
    extents = self._extents(section.source.skeleton, section.cut)
    if section.dim != section.cut or section.takes is None:
      return extents
    return [(e - b) * (x // p) for (b, e, p), x in zip(section.takes, extents, strict=True)]

  def _agree(self, section: Section, extents: Sequence[int], units: Sequence[int] | None) -> bool:
    """True if all ranks that were seen hold what this cut gives them."""
    return all(
      self._agrees(section, model[1], one, i, extents[i], units[i] if units else None)
      for i, model in enumerate(self.models.values())
      for tp, one in model.items()
      if tp > 1
    )

  def _agrees(
    self, section: Section, alone: Seen, one: Seen, model: int, extent: int, units: int | None
  ) -> bool:
    cut, key = section.cut, section.source.skeleton
    assert cut is not None
    padded = self._is_padded(alone, key, cut)
    if section.dim == cut and section.takes is not None and not padded:
      take = section.takes[model]
      return all(
        rows_of(_by_source(held).get(key, []), cut, *take) == rows_at(share_of(extent, units, one.tp, rank % one.tp), *take)
        for rank, held in one.ranks.items()
      )
    for rank, held in one.ranks.items():
      pieces = _by_source(held).get(key, [])
      there = {(p.begin[cut], p.end[cut]) for p in pieces}
      if padded:
        rows = held.shape[alone.ranks[0].pieces[0].dims[cut]]
        share: Interval | None = (min(rank * rows, extent), min((rank + 1) * rows, extent))
        if units is not None or there != ({share} if share and share[0] < share[1] else set()):
          return False
        continue
      share = share_of(extent, units, one.tp, rank % one.tp)
      if share is None or share not in there:
        return False
      if section.takes is None and len(there) > 1:
        return False
    return True

  # The rule as a rules file has it.

  def _part(self, section: Section) -> dict[str, Any]:
    source = section.source
    shift = 1 if source.each else 0
    out: dict[str, Any] = {"match": source.match}
    if section.takes is not None:
      out["take"] = [self._take(section)]
    if section.dims != tuple(range(len(section.dims))):
      out["dims"] = list(section.dims)
    if source.each:
      out["each"] = source.each
    if pad := self._pad(section, shift):
      out["pad"] = [pad]
    if section.cut is not None:
      dim = section.dims[section.cut] + shift
      out["cuts"] = [{"dim": dim, "axes": ["tp"], **section.rule, "even": True}]
    return out

  def _take(self, section: Section) -> dict[str, Any]:
    assert section.takes is not None and section.dim is not None
    extents = self._extents(section.source.skeleton, section.dim)
    begins, ends, periods = (list(x) for x in zip(*section.takes, strict=True))
    out: dict[str, Any] = {"dim": section.dim}
    if any(begins):
      out["begin"] = self._place(section, begins, extents)
    out["end"] = self._place(section, ends, extents)
    if periods != extents:
      out["period"] = self.terms.of(periods, extents)
    return out

  def _place(self, section: Section, wanted: Sequence[int], extents: Sequence[int]) -> str:
    """An expression, or the sum of those of the pieces before."""
    try:
      return self.terms.of(wanted, extents)
    except Unfit:
      pass
    beside = [s.takes for s in self.sections if s.source == section.source and s.takes]
    texts, total = [], [0] * len(wanted)
    for end in sorted({tuple(end for _, end, _ in takes) for takes in beside}):
      texts.append(self.terms.of([e - t for e, t in zip(end, total, strict=True)], extents))
      total = list(end)
      if total == list(wanted):
        return " + ".join(texts)
    raise Unfit(f"no expression of the config gives {', '.join(map(str, wanted))}")

  def _pad(self, section: Section, shift: int) -> dict[str, Any] | None:
    key = section.source.skeleton
    alone = [model[1] for model in self.models.values()]
    for d, local in enumerate(section.dims):
      if not any(self._is_padded(one, key, d) for one in alone):
        continue
      rows = [one.ranks[0].shape[local + shift] for one in alone]
      extents = self._extents(key, d)
      for m in _MULTIPLES:
        if rows == [-(-e // m) * m for e in extents]:
          return {"dim": local + shift, "multiple": m}
      raise Unfit(f"it is padded from {extents} to {rows} rows")
    return None
