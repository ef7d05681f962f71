# SPDX-License-Identifier: Apache-2.0
"""Tensors of which each index of the first dimension is a local tensor: all experts of a layer in one tensor.

Learning sees them as one tensor for each index, whose name ends with it. The rules that it finds for these are then said
of the whole tensors.
"""

import dataclasses
import re
from collections.abc import Sequence

from reshard.learn.fitting.evidence import Held, Sight, Unfit
from reshard.learn.fitting.kinds import Rule, is_of
from reshard.learn.fitting.terms import Terms

_INDEX = ".[]."


def is_index(name: str) -> bool:
  """Whether this is the name of a tensor's index, or the pattern of such names."""
  return _INDEX in name


def taken_apart(sight: Sight) -> Sight:
  """The sight with local tensors of a single index made of the tensor of this index."""
  shapes = dict(sight.shapes)
  ranks: dict[int, dict[str, Held]] = {}
  for rank, held in sight.ranks.items():
    ranks[rank] = {}
    for name, local in held.items():
      ranks[rank][name] = of = _of_index(local)
      for piece, before in zip(of.pieces, local.pieces, strict=True):
        shapes.setdefault(piece.tensor, sight.shapes[before.tensor][1:])
  return dataclasses.replace(sight, shapes=shapes, ranks=ranks)


def _of_index(held: Held) -> Held:
  single = 0 in held.merged and held.shape[0] == 1 and len(held.shape) > 1
  if not single or any(p.dims[0] != 0 or p.end[0] - p.begin[0] != 1 for p in held.pieces):
    return held
  pieces = tuple(
    p._replace(
      tensor=f"{p.tensor}{_INDEX}{p.begin[0]}", begin=p.begin[1:], end=p.end[1:], at=p.at[1:],
      dims=tuple(d - 1 for d in p.dims[1:]),
    )
    for p in held.pieces
  )  # fmt: skip
  merged = tuple(k - 1 for k in held.merged if k > 0)
  return dataclasses.replace(held, shape=held.shape[1:], merged=merged, pieces=pieces)


def say_apart(rule: Rule, sights: Sequence[Sight], terms: Terms) -> None:
  """Says a rule for indices of the tensors that they are of, and of which shape these are: a file may also store them with
  other dimensions first.

  sights  one of each model

  Raises Unfit.
  """
  for part in (rule, *rule.get("with", ())):
    match, _, index = part["match"].partition(_INDEX)
    if not index:
      continue
    if index != "#":
      raise Unfit("one index of a tensor is held otherwise than others")
    part["match"], part["apart"] = match, True
    part["shape"] = _shape(match, sights, terms)


def say_shapes(rule: Rule, pattern: str, sights: Sequence[Sight], terms: Terms) -> None:
  """Says of which shape the tensors are whose pattern of names is like this. Arguments and errors as of say_apart()."""
  for part in (rule, *rule.get("with", ())):
    if "shape" not in part and re.fullmatch(pattern, part["match"]):
      part["shape"] = _shape(part["match"], sights, terms)


def _shape(match: str, sights: Sequence[Sight], terms: Terms) -> list[str]:
  shapes = [{shape for name, shape in of.shapes.items() if is_of(match, name)} for of in sights]
  if any(len(of) != 1 for of in shapes):
    raise Unfit("its tensors have several shapes in one model")
  sizes = zip(*(of.pop() for of in shapes), strict=True)
  return [terms.of(list(size), [0] * len(size)) for size in sizes]
