# SPDX-License-Identifier: Apache-2.0
"""Local tensors in which parts alternate: rows of queries, keys and values, group by group.

Parts that take turns are put one after the other, as if they were stacked, so that learning sees each as a whole; the
number of turns is what a rule then has to say.
"""

import dataclasses
from collections.abc import Sequence

from reshard.learn.fitting.evidence import Held, Piece


@dataclasses.dataclass(frozen=True)
class Turns:
  """How the parts of a local tensor alternate along its first dimension.

  count    turns in the whole tensor
  lengths  of the parts in a turn, in elements
  """

  count: int
  lengths: tuple[int, ...]

  @property
  def size(self) -> int:
    return sum(self.lengths)


def turns_of(held: Held) -> Turns | None:
  """How the parts of a whole tensor alternate; None: they do not."""
  runs = _runs(held.pieces)
  if len({name for name, _, _ in runs}) < 2:
    return _of_one(held.pieces) if len(runs) > 1 else None
  for length in range(2, len(runs) // 2 + 1):
    turns, rest = divmod(len(runs), length)
    names = [(name, size) for name, size, _ in runs]
    if not rest and names == names[:length] * turns:
      return Turns(turns, tuple(size for _, size in names[:length]))
  return None


def _of_one(pieces: Sequence[Piece]) -> Turns | None:
  """How runs of one tensor alternate, such as the queries, keys and values of a fused projection: a turn ends where rows
  begin again before the last ones."""
  turns: list[list[tuple[int, int]]] = []
  for piece in sorted(pieces, key=lambda p: p.at):
    along = _along(piece)
    assert along is not None
    rows = (piece.begin[along], piece.end[along])
    if not turns or rows[0] < turns[-1][-1][1]:
      turns.append([rows])
    elif rows[0] == turns[-1][-1][1]:
      turns[-1][-1] = (turns[-1][-1][0], rows[1])
    else:
      turns[-1].append(rows)
  lengths = tuple(end - begin for begin, end in turns[0])
  wanted = [[(b + t * n, e + t * n) for (b, e), n in zip(turns[0], lengths, strict=True)] for t in range(len(turns))]
  return Turns(len(turns), lengths) if len(lengths) > 1 and turns == wanted else None


def _runs(pieces: Sequence[Piece]) -> list[tuple[str, int, int]]:
  """(tensor, elements, the last one's end): pieces of one tensor that follow each other in the local tensor, and ascend in
  their own."""
  out: list[tuple[str, int, int]] = []
  after = 0
  for piece in sorted(pieces, key=lambda p: p.at):
    along = _along(piece)
    if along is None or piece.at[0] != after:
      return []
    begin, end = piece.begin[along], piece.end[along]
    after += end - begin
    if out and out[-1][0] == piece.tensor and begin >= out[-1][2]:
      out[-1] = (piece.tensor, out[-1][1] + end - begin, end)
    else:
      out.append((piece.tensor, end - begin, end))
  return out


def _along(piece: Piece) -> int | None:
  """The tensor's dimension that runs along the first one of the local tensor."""
  return piece.dims.index(0) if 0 in piece.dims else None


def straightened(held: Held, turns: Turns) -> Held | None:
  """The same tensor, or a rank's part of it, with its parts one after the other; None if the rank has no whole turns."""
  count, rest = divmod(held.shape[0], turns.size)
  if rest or not count:
    return None
  before = [sum(turns.lengths[:i]) for i in range(len(turns.lengths) + 1)]
  pieces = []
  for piece in held.pieces:
    turn, offset = divmod(piece.at[0], turns.size)
    part = max(i for i, begin in enumerate(before[:-1]) if begin <= offset)
    along = _along(piece)
    assert along is not None
    if offset + piece.end[along] - piece.begin[along] > before[part + 1]:
      return None
    at = count * before[part] + turn * turns.lengths[part] + offset - before[part]
    pieces.append(piece._replace(at=(at, *piece.at[1:])))
  return merged(dataclasses.replace(held, pieces=tuple(pieces)))


def merged(held: Held) -> Held:
  """The same tensor with boxes that continue each other along its first dimension as one."""
  out: list[Piece] = []
  for piece in sorted(held.pieces, key=lambda p: (p.at, p.tensor)):
    joined = _joined(out[-1], piece) if out else None
    if joined is None:
      out.append(piece)
    else:
      out[-1] = joined
  return dataclasses.replace(held, pieces=tuple(out))


def _joined(one: Piece, two: Piece) -> Piece | None:
  along = _along(one)
  if along is None or (one.tensor, one.dims, one.at[1:]) != (two.tensor, two.dims, two.at[1:]):
    return None
  others = [i for i in range(len(one.begin)) if i != along]
  same = all((one.begin[i], one.end[i]) == (two.begin[i], two.end[i]) for i in others)
  follows = one.end[along] == two.begin[along] and one.at[0] + one.end[along] - one.begin[along] == two.at[0]
  return one._replace(end=two.end) if same and follows else None
