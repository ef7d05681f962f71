# SPDX-License-Identifier: Apache-2.0
"""What ranks hold, as learning reads it: local tensors of traced layouts, and their names."""

import dataclasses
import json
import pathlib
import re
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from reshard import _core
from reshard.tracing._text import read_part

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Unfit(Exception):
  """Why no rule says what was seen. One line."""


class Piece(NamedTuple):
  """A box of a canonical tensor in a local one: dimension i of it runs along dims[i], from at."""

  tensor: str
  begin: tuple[int, ...]
  end: tuple[int, ...]
  at: tuple[int, ...]
  dims: tuple[int, ...]


class Dealt(NamedTuple):
  """Elements of a tensor that a local one has in turns, in each run of `period`: 0, turns, 2 * turns, ..., then 1, ...

  tensor  the skeleton of its name
  dim     its dimension
  """

  tensor: str
  dim: int
  turns: int
  period: int


@dataclasses.dataclass(frozen=True)
class Held:
  """A local tensor of a rank.

  dealt  of the tensors whose rows it deals out (reshard.learn.fitting.rows)
  """

  name: str
  dtype: str
  shape: tuple[int, ...]
  pieces: tuple[Piece, ...]
  map: str
  merged: tuple[int, ...]
  dealt: tuple[Dealt, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sight:
  """What ranks were seen to hold of a model.

  sizes    the parallel sizes, without those that are 1
  shapes   of the canonical tensors
  ranks    {rank: {name: local tensor}}
  omitted  canonical tensors that no rank holds
  numbers  the whole numbers of the model's config, by dotted name
  model    which of the models that were seen
  """

  sizes: Mapping[str, int]
  shapes: Mapping[str, tuple[int, ...]]
  ranks: Mapping[int, Mapping[str, Held]]
  omitted: frozenset[str]
  numbers: Mapping[str, int]
  model: int

  @classmethod
  def of(
    cls, layout: _core.Layout, sizes: Mapping[str, int], numbers: Mapping[str, int], model: int
  ) -> "Sight":
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "layout.json")
      layout.save(path)
      said = json.loads(path.read_text(encoding="utf-8"))
    shapes = {t["name"]: tuple(t["shape"]) for t in said["tensors"]}
    ranks: dict[int, dict[str, Held]] = {rank: {} for rank in _ranks(said["ranks"])}
    for entry in said["local_tensors"]:
      held = _held(entry, list(shapes))
      for rank in _ranks(entry["ranks"]):
        ranks[rank][held.name] = held
    return cls(dict(sizes), shapes, ranks, frozenset(said["omitted"]), numbers, model)


def _ranks(text: str) -> Iterable[int]:
  for run in filter(None, text.split(",")):
    first, _, last = run.partition("-")
    yield from range(int(first), int(last or first) + 1)


def _held(entry: Mapping[str, Any], named: list[str]) -> Held:
  pieces = [_piece(text, entry, named) for text in entry.get("parts", ())]
  return Held(
    entry["name"],
    entry["dtype"],
    tuple(entry["shape"]),
    tuple(sorted(pieces, key=lambda p: (p.at, p.tensor))),
    entry.get("map", "identity"),
    tuple(entry.get("merged", ())),
  )


def _piece(text: str, entry: Mapping[str, Any], named: list[str]) -> Piece:
  part = read_part(text)
  tensor, rank = named[part.weight], len(entry["shape"])
  if any(step != 1 for step in part.steps):
    raise Unfit(f"'{entry['name']}' holds rows of '{tensor}' with others between them")
  said = tuple(d for d in part.dims if d is not None)
  dims = said or tuple(range(rank - len(part.begin), rank))
  return Piece(tensor, part.begin, part.end, part.at or (0,) * rank, dims)


# -- names, whose components may be numbers


def skeleton(name: str) -> str:
  """The name with '#' for each component that is a number."""
  return _NUMBER.sub("#", name)


def fixed_numbers(kind: str) -> list[int | None]:
  """The numbers of a kind's name, by position; None for a '#'."""
  return [int(c) if c.isdigit() else None for c in kind.split(".") if c.isdigit() or c == "#"]


def numbers_in(name: str) -> tuple[int, ...]:
  return tuple(int(n) for n in _NUMBER.findall(name))


def filled(skeleton_: str, texts: Iterable[str]) -> str:
  """The skeleton with these in the places of its '#'."""
  parts = skeleton_.split("#")
  return "".join(a + b for a, b in zip(parts, [*texts, ""], strict=True))
