# SPDX-License-Identifier: Apache-2.0
"""Local tensors whose rows lie in several dimensions, because a loader moves each head, or pairs of a head's rows.

They are seen with the rows in one dimension, as the module has them; rows that are dealt out are seen in the order of
their tensor, and deal() then says so in the rule.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from reshard.learn.fitting.evidence import Dealt, Held, Piece, Sight, Unfit, skeleton
from reshard.learn.fitting.fit import Seen
from reshard.learn.fitting.kinds import Rule
from reshard.learn.fitting.terms import Terms
from reshard.learn.fitting.turns import merged


def in_rows(sight: Sight) -> Sight:
  """The sight with the rows of local tensors in one dimension."""
  ranks = {rank: {name: flattened(local) for name, local in held.items()} for rank, held in sight.ranks.items()}
  return dataclasses.replace(sight, ranks=ranks)


def flattened(held: Held) -> Held:
  """The same with dimensions that the module has as one as one, where each of its boxes runs along one of them at most."""
  for first, last in reversed(list(_groups(held.merged))):
    if held.shape[first] == 1 or any(sum(first <= d <= last for d in p.dims) > 1 for p in held.pieces):
      continue
    held = _joined(held, first, last)
  return held


def _groups(dims: Sequence[int]) -> Iterator[tuple[int, int]]:
  """The first and the last of dimensions that are one."""
  for k in dims:
    if k - 1 not in dims:
      yield k, next(n for n in range(k + 1, k + 2 + len(dims)) if n not in dims)


def _joined(held: Held, first: int, last: int) -> Held:
  strides = [math.prod(held.shape[d + 1 : last + 1]) for d in range(first, last + 1)]
  less = last - first
  pieces: list[Piece] = []
  dealt = list(held.dealt)
  for p in held.pieces:
    row = sum(a * s for a, s in zip(p.at[first : last + 1], strides, strict=True))
    along = next((i for i, d in enumerate(p.dims) if first <= d <= last), None)
    step = 1 if along is None else strides[p.dims[along] - first]
    if along is not None and step > 1 and p.end[along] - p.begin[along] > 1:
      one = Dealt(skeleton(p.tensor), along, p.end[along] - p.begin[along], step * (p.end[along] - p.begin[along]))
      before = p.begin[along] % one.period // one.turns  # in its run
      row += before * (one.turns - 1)
      dealt.append(one)
    dims = tuple(first if first <= d <= last else d - less * (d > last) for d in p.dims)
    pieces.append(p._replace(at=(*p.at[:first], row, *p.at[last + 1 :]), dims=dims))
  shape = (*held.shape[:first], held.shape[first] * strides[0], *held.shape[last + 1 :])
  others = tuple(k - less * (k > last) for k in held.merged if not first <= k < last)
  out = dataclasses.replace(
    held, shape=shape, merged=others, dealt=tuple(dict.fromkeys(dealt)), pieces=tuple(sorted(pieces, key=lambda p: (p.at, p.tensor)))
  )
  return merged(out) if dealt else out


def deal(rule: Rule, seen: Sequence[Seen], terms: Terms) -> None:
  """Says in a rule that rows are dealt out. `seen`: the local tensors that the rule is for.

  Raises Unfit.
  """
  found = {(one.sight.model, d) for one in seen for held in one.ranks.values() for d in held.dealt}
  for part in (rule, *rule.get("with", ())):
    here = {(model, d) for model, d in found if d.tensor == skeleton(part["match"].replace("#", "0"))}
    if not here:
      continue
    forms, models = {(d.dim, d.turns) for _, d in here}, sorted({model for model, _ in here})
    if len(forms) != 1 or len(here) != len(models) or models != sorted({one.sight.model for one in seen}) or "take" in part:
      raise Unfit("its rows are dealt out in several ways")
    (dim, turns), = forms
    periods = [d.period for _, d in sorted(here)]
    period = terms.of(periods, [0] * len(periods))
    part["take"] = [{"dim": dim, "end": period, "period": period, "turns": turns}]
