# SPDX-License-Identifier: Apache-2.0
"""Kinds of local tensors, by name: skeletons in which some '#' may be fixed."""

from collections.abc import Iterator, Sequence
from typing import Any

from reshard.learn.fitting.evidence import fixed_numbers, numbers_in, skeleton
from reshard.learn.fitting.fit import Seen

Rule = dict[str, Any]


def prefix_at(kind: str, at: int) -> str:
  """The kind's name up to its number at this position; the whole name if it has none."""
  components = skeleton(kind).split(".")
  numbered = [i for i, c in enumerate(components) if c == "#"]
  return ".".join(components[: numbered[at] + 1]) if at < len(numbered) else kind


def is_of(kind: str, name: str) -> bool:
  if skeleton(name) != skeleton(kind):
    return False
  return all(w is None or n == w for n, w in zip(numbers_in(name), fixed_numbers(kind), strict=True))


def wildcards(rule: Rule) -> list[int]:
  """Of the wildcards of a rule, in order: the number of the local tensor's name that each is."""
  if "name" not in rule:
    numbered = [c for c in rule["match"].split(".") if c.isdigit() or c == "#"]
    return [i for i, c in enumerate(numbered) if c == "#"]
  numbered = [c for c in rule["name"].split(".") if c.isdigit() or c.startswith("$")]
  places = {int(c[1:]): i for i, c in enumerate(numbered) if c.startswith("$")}
  return [places[k] for k in sorted(places)]


def alike(seen: Sequence[Seen]) -> bool:
  """Whether the local tensors of a kind, at the same sizes, all hold the same dimensions whole and the same
  ones in part."""
  forms: dict[tuple[int, str], set[frozenset[Any]]] = {}
  for one in seen:
    shapes = one.sight.shapes
    form = frozenset(
      (skeleton(piece.tensor), tuple(map(_is_whole, piece.begin, piece.end, shapes[piece.tensor])))
      for held in one.ranks.values()
      for piece in held.pieces
    )
    forms.setdefault((one.sight.model, str(sorted(one.sight.sizes.items()))), set()).add(form)
  return all(len(found) == 1 for found in forms.values())


def _is_whole(begin: int, end: int, size: int) -> bool:
  return end - begin == size


def splits(name: str, seen: Sequence[Seen]) -> Iterator[list[tuple[str, list[Seen]]]]:
  """Ways to take a kind apart by one of its numbers, the last first."""
  places = [i for i, fixed in enumerate(fixed_numbers(name)) if fixed is None]
  models = {one.sight.model for one in seen}
  for at in reversed(places):
    values = [{numbers_in(o.name)[at] for o in seen if o.sight.model == m} for m in models]
    if len(values[0]) < 2 or any(v != values[0] for v in values):
      continue
    yield [
      (_with_number(name, at, value), [o for o in seen if numbers_in(o.name)[at] == value])
      for value in sorted(values[0])
    ]


def _with_number(name: str, at: int, value: int) -> str:
  components = name.split(".")
  numbered = [i for i, c in enumerate(components) if c.isdigit() or c == "#"]
  components[numbered[at]] = str(value)
  return ".".join(components)
