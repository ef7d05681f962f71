# SPDX-License-Identifier: Apache-2.0
"""What lies where in a storage, as boxes: the state of tracing by recording.

A store describes one storage. Its `base` is a row-major shape of it, and its pieces are boxes of
that shape, each an affine run of elements of one weight. A view of the storage is an offset and,
per dimension, a size and a stride; copying between two views is done in a common index space in
which every dimension of a view runs along one dimension of each base. Bases are split where views
need it ([96] seen as [3, 32] becomes [3, 32]).
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from reshard.tracing._types import MAX_PARTS, Part, TracingError, Weight, row_major, unravel

# Piece.weight of elements that are from no weight: zeros, and computed values (Piece.ops names the operations).
ZERO, OPAQUE = -1, -2

# (size, stride in one view, stride in the other)
Dim = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
  """Along one dimension of a base: begin, begin + step, ...; each a `stride` of the weight on."""

  begin: int
  count: int = 1
  step: int = 1
  stride: int = 0

  @property
  def last(self) -> int:
    return self.begin + (self.count - 1) * self.step

  def sub(self, first: int, count: int) -> "Run":
    """`count` of its indices from number `first` on."""
    if count == 1:
      return Run(self.begin + first * self.step)
    return Run(self.begin + first * self.step, count, self.step, self.stride)

  def position(self, index: int) -> int:
    """The number of an index in the run, or -1."""
    number, off = divmod(index - self.begin, self.step)
    return number if off == 0 and 0 <= number < self.count else -1


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
  """A box of a base that holds elements of one weight. `number`: the row-major element of the
  weight at the box's first corner."""

  runs: tuple[Run, ...]
  weight: int
  number: int = 0
  ops: tuple[str, ...] = ()

  @property
  def size(self) -> int:
    return math.prod(run.count for run in self.runs)

  def sub(self, axis: int, first: int, count: int) -> "Piece":
    """The part of it that begins at number `first` of its run along an axis."""
    run = self.runs[axis]
    runs = (*self.runs[:axis], run.sub(first, count), *self.runs[axis + 1 :])
    return dataclasses.replace(self, runs=runs, number=self.number + first * run.stride)


def _split_run(piece: Piece, axis: int, inner: int) -> Iterator[Piece]:
  """The piece after base dimension `axis` has become two, the second of size `inner`."""
  run = piece.runs[axis]

  def with_runs(part: Piece, outer: Run, within: Run) -> Piece:
    return dataclasses.replace(
      part, runs=(*part.runs[:axis], outer, within, *part.runs[axis + 1 :])
    )

  row, column = divmod(run.begin, inner)
  if run.last < (row + 1) * inner:
    yield with_runs(piece, Run(row), dataclasses.replace(run, begin=column))
  elif run.step % inner == 0:
    yield with_runs(piece, Run(row, run.count, run.step // inner, run.stride), Run(column))
  elif inner % run.step == 0 and column < run.step and run.count % (inner // run.step) == 0:
    per_row = inner // run.step
    rows = run.count // per_row
    outer = Run(row, rows, 1, run.stride * per_row) if rows > 1 else Run(row)
    yield with_runs(piece, outer, Run(column, per_row, run.step, run.stride))
  else:
    whole = inner // run.step if inner % run.step == 0 and column < run.step else 0
    first = run.count // whole * whole if whole else -(-(inner - column) // run.step)
    yield from _split_run(piece.sub(axis, 0, first), axis, inner)
    yield from _split_run(piece.sub(axis, first, run.count - first), axis, inner)


def _meet(a: Run, b: Run) -> bool:
  """True if two runs share an index."""
  low, high = max(a.begin, b.begin), min(a.last, b.last)
  if low > high:
    return False
  common = math.gcd(a.step, b.step)
  if (b.begin - a.begin) % common:
    return False
  if a.step == 1 or b.step == 1:
    wide = b if a.step == 1 else a
    return wide.begin + -(-(low - wide.begin) // wide.step) * wide.step <= high
  few, many = (a, b) if a.count < b.count else (b, a)
  return any(many.position(few.begin + i * few.step) >= 0 for i in range(few.count))


def _covers(a: Run, b: Run) -> bool:
  """True if every index of `b` is in `a`."""
  if a.position(b.begin) < 0 or a.position(b.last) < 0:
    return False
  return b.count == 1 or b.step % a.step == 0


def _without(old: Piece, new: Piece) -> Iterator[Piece]:
  """What remains of `old` when `new` is written over it. @pre they meet, with steps of 1"""
  for axis, (a, b) in enumerate(zip(old.runs, new.runs, strict=True)):
    if b.begin > a.begin:
      yield old.sub(axis, 0, b.begin - a.begin)
      old = old.sub(axis, b.begin - a.begin, a.last - b.begin + 1)
      a = old.runs[axis]
    if b.last < a.last:
      yield old.sub(axis, b.last - a.begin + 1, a.last - b.last)
      old = old.sub(axis, 0, b.last - a.begin + 1)


class Store:
  """The content of one storage."""

  def __init__(self, shape: Sequence[int]) -> None:
    self.base = list(shape)
    self.strides = list(row_major(shape))
    self.dim_of = list(range(len(self.base)))  # the dimension of `shape` that each is a part of
    self._pieces: dict[int, list[Piece]] = {}  # by their only index along dimension 0; -1: others
    self._last = [-1] * len(self.base)  # the largest index along each dimension that a piece may have

  def pieces(self) -> list[Piece]:
    return [piece for bucket in self._pieces.values() for piece in bucket]

  def write(self, new: Piece) -> None:
    """Puts a piece over what was there."""
    key = self._key(new)
    # Loaders mostly write one after the other: then nothing was there, and no piece need be looked at.
    if all(run.begin <= last for run, last in zip(new.runs, self._last, strict=True)):
      for k in (key, -1) if key >= 0 else list(self._pieces):
        bucket = self._pieces.get(k)
        if bucket:
          self._pieces[k] = [left for old in bucket for left in self._left(old, new)]
    self._append(key, new)

  def _append(self, key: int, piece: Piece) -> None:
    self._pieces.setdefault(key, []).append(piece)
    self._last = [max(last, run.last) for last, run in zip(self._last, piece.runs, strict=True)]

  def erase(self, box: Piece) -> None:
    """Forgets what was in a box."""
    self.write(box)
    self._pieces[self._key(box)].pop()

  @staticmethod
  def _key(piece: Piece) -> int:
    return piece.runs[0].begin if piece.runs and piece.runs[0].count == 1 else -1

  @staticmethod
  def _left(old: Piece, new: Piece) -> Iterable[Piece]:
    pairs = list(zip(old.runs, new.runs, strict=True))
    if not all(_meet(a, b) for a, b in pairs):
      return (old,)
    if all(_covers(b, a) for a, b in pairs):
      return ()
    if any(r.step > 1 for pair in pairs for r in pair):
      raise TracingError("writes over a part of what it wrote before, in other steps")
    return _without(old, new)

  def refine(self, axis: int, inner: int) -> None:
    """Splits a base dimension in two, the second of size `inner`."""
    pieces = self.pieces()
    self.base[axis : axis + 1] = [self.base[axis] // inner, inner]
    self.strides = list(row_major(self.base))
    self.dim_of.insert(axis, self.dim_of[axis])
    self._pieces = {}
    self._last = [-1] * len(self.base)
    for piece in pieces:
      for part in _split_run(piece, axis, inner):
        self._append(self._key(part), part)

  def axis_of(self, stride: int) -> tuple[int, int]:
    """The base dimension along which a stride of a view goes, and its steps there."""
    for axis, along in enumerate(self.strides):
      if self.base[axis] > 1 and along <= stride:
        if stride % along:
          break
        return axis, stride // along
    raise TracingError(f"sees a storage of shape {self.base} in steps of {stride} elements")


class _Copy:
  """One copy from a view of a store to a view of another."""

  def __init__(self, dst: Store, src: Store, ops: tuple[str, ...]) -> None:
    self.sides = (dst, src)
    self.ops = ops

  def run(self, dims: list[Dim], offsets: tuple[int, int]) -> None:
    dims = [dim for dim in dims if dim[0] != 1]
    while self._step(dims, offsets):
      pass

  def _step(self, dims: list[Dim], offsets: tuple[int, int]) -> bool:
    """Makes one more dimension run along one base dimension on both sides; when all do, copies.
    True if it has to be called again."""
    uses: list[list[tuple[int, int]]] = []
    for side, store in enumerate(self.sides):
      at = unravel(offsets[side], store.base)
      use: list[tuple[int, int]] = []
      on: dict[int, list[int]] = {}
      for i, dim in enumerate(dims):
        if dim[1 + side] == 0:
          if side == 0:
            raise TracingError("writes several elements to one place")
          use.append((-1, 0))
          continue
        axis, step = store.axis_of(dim[1 + side])
        if at[axis] + step * (dim[0] - 1) >= store.base[axis]:
          return self._wrap(dims, offsets, i, store.base[axis], at[axis], step)
        use.append((axis, step))
        on.setdefault(axis, []).append(i)
      for axis, those in on.items():
        if len(those) > 1:
          return self._share(dims, offsets, side, axis, those, use, at[axis])
      uses.append(use)
    self._emit(dims, offsets, uses)
    return False

  def _wrap(
    self, dims: list[Dim], offsets: tuple[int, int], i: int, extent: int, begin: int, step: int
  ) -> bool:
    """Dimension i goes on in the next row of the base: split it there."""
    size, *strides = dims[i]
    per_row = extent // step
    if begin < step and extent % step == 0 and size % per_row == 0:
      outer = (size // per_row, strides[0] * per_row, strides[1] * per_row)
      inner = (per_row, strides[0], strides[1])
      dims[i : i + 1] = [dim for dim in (outer, inner) if dim[0] != 1]
      return True
    first = -(-(extent - begin) // step)
    if begin < step and extent % step == 0 and size > per_row:
      first = size // per_row * per_row
    later = (offsets[0] + first * strides[0], offsets[1] + first * strides[1])
    self.run([*dims[:i], (first, *strides), *dims[i + 1 :]], offsets)  # type: ignore[list-item]
    self.run([*dims[:i], (size - first, *strides), *dims[i + 1 :]], later)  # type: ignore[list-item]
    return False

  def _share(
    self,
    dims: list[Dim],
    offsets: tuple[int, int],
    side: int,
    axis: int,
    those: list[int],
    use: list[tuple[int, int]],
    begin: int,
  ) -> bool:
    """Several dimensions run along one base dimension: split the base, or else the copy."""
    store = self.sides[side]
    outer = max(those, key=lambda i: use[i][1])
    step = use[outer][1]
    reach = sum((dims[i][0] - 1) * use[i][1] for i in those if i != outer)
    if store.base[axis] % step == 0 and begin % step + reach < step and 1 < step:
      store.refine(axis, step)
      return True
    size, *strides = dims[outer]
    rest = dims[:outer] + dims[outer + 1 :]
    for i in range(size):
      self.run(list(rest), (offsets[0] + i * strides[0], offsets[1] + i * strides[1]))
    return False

  def _emit(
    self, dims: list[Dim], offsets: tuple[int, int], uses: list[list[tuple[int, int]]]
  ) -> None:
    dst, src = self.sides
    at_dst, at_src = unravel(offsets[0], dst.base), unravel(offsets[1], src.base)
    along = {axis: i for i, (axis, _) in enumerate(uses[1]) if axis >= 0}
    found: list[Piece] = []
    for piece in src.pieces():
      number, runs = piece.number, [Run(begin) for begin in at_dst]
      for axis, run in enumerate(piece.runs):
        if axis in along:
          continue
        position = run.position(at_src[axis])
        if position < 0:
          break
        number += position * run.stride
      else:
        new = self._clip(piece, dims, uses, at_src, at_dst, number, runs)
        if new is not None:
          found.append(new)
    if sum(piece.size for piece in found) < math.prod(dim[0] for dim in dims):
      box = [Run(begin) for begin in at_dst]
      for (size, *_), (axis, step) in zip(dims, uses[0], strict=True):
        box[axis] = Run(at_dst[axis], size, step)
      dst.erase(Piece(tuple(box), OPAQUE))  # what nothing wrote is copied, too
    for piece in found:
      dst.write(piece)

  def _clip(
    self,
    piece: Piece,
    dims: list[Dim],
    uses: list[list[tuple[int, int]]],
    at_src: tuple[int, ...],
    at_dst: tuple[int, ...],
    number: int,
    runs: list[Run],
  ) -> Piece | None:
    """What the view sees of a piece, at its place in the destination; None for nothing."""
    for i, dim in enumerate(dims):
      axis, step = uses[1][i]
      first, count, every, stride = 0, dim[0], 1, 0
      if axis >= 0:
        seen = _seen(piece.runs[axis], at_src[axis], step, dim[0])
        if seen is None:
          return None
        first, count, every, position, by = seen
        stride = by * piece.runs[axis].stride
        number += position * piece.runs[axis].stride
      to, by = uses[0][i]
      runs[to] = Run(at_dst[to] + by * first)
      if count > 1:
        runs[to] = Run(at_dst[to] + by * first, count, by * every, stride)
    return Piece(tuple(runs), piece.weight, number, (*piece.ops, *self.ops))


def _seen(run: Run, at: int, step: int, size: int) -> tuple[int, int, int, int, int] | None:
  """Which of the indices at, at + step, ... (`size` of them) are in a run: (number of the first,
  how many, every how manyth, position of the first in the run, positions from one to the next)."""
  common = math.gcd(step, run.step)
  if (run.begin - at) % common:
    return None
  every, by = run.step // common, step // common
  # The first i >= 0 with at + i * step in the run's residue class and not before its begin.
  first = max(0, -(-(run.begin - at) // step))
  while (at + first * step - run.begin) % run.step:
    first += 1
  last = min(size - 1, (run.last - at) // step)
  if first > last:
    return None
  count = (last - first) // every + 1
  return first, count, every, (at + first * step - run.begin) // run.step, by


def copy(
  dst: Store, src: Store, dims: list[Dim], offsets: tuple[int, int], ops: tuple[str, ...] = ()
) -> None:
  """Copies between views of the same sizes: `dims` are (size, stride in dst, stride in src)."""
  if all(dim[0] for dim in dims):
    _Copy(dst, src, ops).run(dims, offsets)


def parts_of(piece: Piece, number: int, weight: Weight) -> list[Part]:
  """A piece as boxes of a weight: split where it goes on in the weight's next row, and where its
  steps are no dimension of the weight."""
  parts: list[Part] = []
  open_pieces = [piece]
  while open_pieces:
    if len(parts) > MAX_PARTS:
      raise TracingError(f"more than {MAX_PARTS} boxes: its elements are in no order of boxes")
    this = open_pieces.pop()
    split = _box_of(this, number, weight)
    if isinstance(split, Part):
      parts.append(split)
    else:
      open_pieces.extend(reversed(split))
  return parts


def _box_of(piece: Piece, weight_id: int, weight: Weight) -> Part | list[Piece]:
  shape = weight.index_shape
  begin = unravel(piece.number, shape)
  sizes = [1] * len(shape)
  dims: list[int | None] = [None] * len(shape)
  steps = [1] * len(shape)
  for axis, run in enumerate(piece.runs):
    if run.count == 1:
      continue
    dim = next((j for j, s in enumerate(weight.strides) if s == run.stride and shape[j] > 1), -1)
    if dim < 0 or dims[dim] is not None or shape[dim] - begin[dim] == 1:
      return [piece.sub(axis, i, 1) for i in range(run.count)]
    room = shape[dim] - begin[dim]
    if run.count > room:
      return [piece.sub(axis, 0, room), piece.sub(axis, room, run.count - room)]
    sizes[dim], dims[dim], steps[dim] = run.count, axis, run.step
  end = tuple(b + n for b, n in zip(begin, sizes, strict=True))
  at = tuple(run.begin for run in piece.runs)
  return Part(weight_id, begin, end, at, tuple(dims), tuple(steps))
