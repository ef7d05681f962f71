# SPDX-License-Identifier: Apache-2.0
"""Elements of tensors along one dimension: which ones local tensors hold, and what ranks share."""

from collections.abc import Sequence

from reshard.learn.fitting.evidence import Piece, Unfit

Interval = tuple[int, int]


def intervals_of(pieces: Sequence[Piece], dim: int) -> list[Interval]:
  """Along a dimension of the tensor, in the order in which the local tensor has them, each once."""
  ordered = sorted(pieces, key=lambda p: p.at[p.dims[dim]])
  found: list[Interval] = []
  for begin, end in dict.fromkeys((p.begin[dim], p.end[dim]) for p in ordered):
    if found and found[-1][1] == begin:
      found[-1] = (found[-1][0], end)
    else:
      found.append((begin, end))
  return found


def ascending_runs(intervals: Sequence[Interval]) -> list[list[Interval]]:
  """Taken apart where they begin anew: each run ascends."""
  found: list[list[Interval]] = []
  for one in intervals:
    if found and one[0] > found[-1][-1][0]:
      found[-1].append(one)
    else:
      found.append([one])
  return found


def periodic(intervals: Sequence[Interval], extent: int) -> tuple[int, int, int]:
  begin, end = intervals[0]
  if len(intervals) == 1:
    return begin, end, extent
  period = intervals[1][0] - begin
  wanted = [(begin + k * period, end + k * period) for k in range(len(intervals))]
  if period <= 0 or list(intervals) != wanted or period * len(intervals) != extent:
    raise Unfit("its rows follow no period")
  return begin, end, period


def shared_by_two(
  one: list[Interval], two: list[list[Interval]], extent: int
) -> tuple[list[tuple[int, int, int]], list[bool]]:
  """What two ranks share: (begin, end, period) of intervals that are cut in halves, or of periods; and whether each is
  cut. Of one run, both ranks may have intervals whole."""
  both = _common(*two)
  if both and len(one) == 1:
    halves = [_without(half, both) for half in two]
    whole = [(begin, end, extent) for begin, end in both]
    found, _ = shared_by_two(_without(one, both), halves, extent)
    every = sorted([(take, True) for take in found] + [(take, False) for take in whole])
    return [take for take, _ in every], [is_cut for _, is_cut in every]
  runs = ascending_runs(one)
  if len(one) > len(runs) and all(_in_turn(run, _split(two[0], one), _split(two[1], one)) for run in runs):
    return [periodic(run, extent) for run in runs], [True] * len(runs)
  if len(two[0]) == len(two[1]):
    pairs = list(zip(*two, strict=True))
    alike = all(a[1] == b[0] and a[1] - a[0] == b[1] - b[0] > 0 for a, b in pairs)
    if alike:
      return [(a[0], b[1], extent) for a, b in pairs], [True] * len(pairs)
  raise Unfit("two ranks do not hold a half each")


def _split(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
  """Intervals that end where one of the others begins or ends."""
  ends = sorted({end for other in others for end in other})
  out: list[Interval] = []
  for begin, end in some:
    places = [begin, *(e for e in ends if begin < e < end), end]
    out += zip(places, places[1:])
  return out


def _in_turn(run: Sequence[Interval], first: Sequence[Interval], second: Sequence[Interval]) -> bool:
  """Whether one rank has the first intervals of a run, and the other the rest."""
  return [i for i in first if i in run] + [i for i in second if i in run] == list(run)


def _common(one: Sequence[Interval], two: Sequence[Interval]) -> list[Interval]:
  found = [(max(a[0], b[0]), min(a[1], b[1])) for a in one for b in two]
  return sorted(pair for pair in found if pair[0] < pair[1])


def _without(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
  """What is left of ascending intervals."""
  out: list[Interval] = []
  for begin, end in some:
    for first, last in (o for o in sorted(others) if begin < o[1] and o[0] < end):
      if begin < first:
        out.append((begin, first))
      begin = last
    if begin < end:
      out.append((begin, end))
  return out


def share_of(extent: int, units: int | None, ranks: int, rank: int) -> Interval | None:
  """What a rank has of an even cut, or of units that are repeated where there are more ranks."""
  count = extent if units is None else units
  size = extent // count if count else 0
  if count >= ranks and count % ranks == 0:
    return rank * (count // ranks) * size, (rank + 1) * (count // ranks) * size
  if units is None or ranks % count:
    return None
  unit = rank * count // ranks
  return unit * size, (unit + 1) * size


def rows_of(pieces: Sequence[Piece], dim: int, begin: int, end: int, period: int) -> set[int]:
  """Of the elements [begin, end) of each period along a dimension: those in the pieces."""
  rows = {row for p in pieces for row in range(p.begin[dim], p.end[dim])}
  return {row for row in rows if begin <= row % period < end}


def rows_at(share: Interval | None, begin: int, end: int, period: int) -> set[int] | None:
  """Where a share of these elements, one period's after the other, is in the tensor."""
  if share is None:
    return None
  size = end - begin
  return {i // size * period + begin + i % size for i in range(*share)}
