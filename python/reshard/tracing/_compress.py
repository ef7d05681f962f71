# SPDX-License-Identifier: Apache-2.0
"""Element numbers of a local tensor -> boxes.

Take the first element that no box has yet, and grow a box from it: along each local dimension, from
the last to the first, as far as the numbers advance along one dimension of the weight. Elements
that lie between (every second row belongs to another weight, say) stay for other boxes. Each box is
compared as a whole, in vectors; each element is looked at a constant number of times.
"""

import numpy as np
import numpy.typing as npt

from reshard.tracing._types import MAX_PARTS, Part, TracingError, Weight, unravel

Numbers = npt.NDArray[np.int64]

# Values in an array of element numbers that are not element numbers.
TAKEN = -2
UNTOUCHED = -1
# The largest distance between neighbours: PlacedBox.gaps are 16-bit.
_MAX_STEP = 1 << 15
# Elements that are compared at a time.
_CHUNK = 1 << 20


class Numbering:
  """Gives every element of every weight a number of its own.

  The numbers of all elements are 3 modulo 7, so that no sum, difference or product with a constant
  that a loader may compute is another element's number. 0 is a zero that the loader wrote.
  """

  STEP, FIRST = 7, 3

  def __init__(self, weights: list[Weight]) -> None:
    self.weights = weights
    sizes = np.array([w.size for w in weights], dtype=np.int64)
    self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

  def positions(self, numbers: Numbers) -> tuple[Numbers, bool]:
    """Positions of the elements (-1 untouched; -3 zero), and whether all numbers are possible."""
    shifted = numbers - self.FIRST
    positions = shifted // self.STEP
    possible = (shifted % self.STEP == 0) & (positions >= 0) & (positions < self.starts[-1])
    zero, untouched = numbers == 0, numbers == UNTOUCHED
    positions = np.where(untouched, UNTOUCHED, np.where(zero, ZERO, positions))
    return positions, bool((possible | zero | untouched).all())

  def weight_of(self, position: int) -> int:
    return int(np.searchsorted(self.starts, position, side="right")) - 1


ZERO = -3


class _Growth:
  """A box that grows from one element."""

  def __init__(self, a: Numbers, at: tuple[int, ...], weight: Weight, start: int) -> None:
    self.a, self.at, self.weight = a, at, weight
    self.value = int(a[at])
    self.begin = unravel(self.value - start, weight.index_shape)
    self.counts = [1] * a.ndim
    self.steps = [1] * a.ndim
    self.strides = [0] * a.ndim
    self.axis_of: dict[int, int] = {}  # dimension of the weight -> of the local tensor
    self.offsets: Numbers = np.zeros((), dtype=np.int64)  # of the box so far, from its first

  def index(self, axis: int, count: int) -> tuple[slice | int, ...]:
    """The box's elements along axes from `axis` on, `count` along `axis`; the first of others."""
    out: list[slice | int] = list(self.at[:axis])
    for k in range(axis, self.a.ndim):
      n = count if k == axis else self.counts[k]
      out.append(slice(self.at[k], self.at[k] + (n - 1) * self.steps[k] + 1, self.steps[k]))
    return tuple(out)

  def candidates(self, axis: int) -> tuple[int, int, int]:
    """(count, step, dimension of the weight) of the longest run from the first element."""
    index: tuple[slice | int, ...] = (*self.at[:axis], slice(self.at[axis], None))
    line = self.a[index + self.at[axis + 1 :]]
    best = (1, 1, -1)
    for dim in reversed(range(len(self.begin))):
      room = self.weight.index_shape[dim] - self.begin[dim]
      if dim in self.axis_of or room < 2:
        continue
      stride = self.weight.strides[dim]
      step = 1
      if line[1] != self.value + stride:
        found = np.flatnonzero(line[2 : _MAX_STEP + 1] == self.value + stride)
        if found.size == 0:
          continue
        step = int(found[0]) + 2
      run = line[::step][:room]
      wanted = self.value + stride * np.arange(run.size, dtype=np.int64)
      wrong = np.flatnonzero(run != wanted)
      count = int(wrong[0]) if wrong.size else run.size
      if count > best[0]:
        best = (count, step, dim)
      if step == 1 and (count == room or count == line.size):
        break
    return best

  def grow(self, axis: int) -> None:
    if self.a.shape[axis] - self.at[axis] < 2:
      self.offsets = self.offsets[np.newaxis]
      return
    count, step, dim = self.candidates(axis)
    if dim >= 0:
      self.steps[axis] = step
      stride = self.weight.strides[dim]
      count = self.agreeing(axis, count, stride)
      if count > 1:
        self.counts[axis], self.strides[axis] = count, stride
        self.axis_of[dim] = axis
      else:
        self.steps[axis] = 1
    along = np.arange(self.counts[axis], dtype=np.int64) * self.strides[axis]
    self.offsets = along.reshape(-1, *[1] * self.offsets.ndim) + self.offsets

  def agreeing(self, axis: int, count: int, stride: int) -> int:
    """How many steps along `axis` the whole box agrees with, at most `count`."""
    if self.offsets.size == 1:
      return count
    self.counts[axis] = count
    block = self.a[self.index(axis, count)]
    per_step = max(1, _CHUNK // self.offsets.size)
    for first in range(0, count, per_step):
      last = min(count, first + per_step)
      along = np.arange(first, last, dtype=np.int64) * stride + self.value
      wanted = along.reshape(-1, *[1] * self.offsets.ndim) + self.offsets
      same = (block[first:last] == wanted).reshape(last - first, -1).all(axis=1)
      if not same.all():
        return first + int(np.argmin(same))
    return count

  def part(self, weight: int) -> Part:
    sizes = [1] * len(self.begin)
    dims: list[int | None] = [None] * len(self.begin)
    steps = [1] * len(self.begin)
    for dim, axis in self.axis_of.items():
      sizes[dim], dims[dim], steps[dim] = self.counts[axis], axis, self.steps[axis]
    end = tuple(b + n for b, n in zip(self.begin, sizes, strict=True))
    return Part(weight, self.begin, end, self.at, tuple(dims), tuple(steps))


def _factored(a: Numbers, weight: Weight) -> Numbers:
  """The array with its last dimension split as the weight's last ones are, if it consists of whole
  rows of them: a convolution's kernel that the engine keeps as a matrix."""
  tail = 1
  for dim in range(len(weight.index_shape) - 1, 0, -1):
    tail *= weight.index_shape[dim]
    if a.shape[-1] % tail:
      break
    split = [n for n in weight.index_shape[dim:] if n > 1]
    if tail == a.shape[-1] and len(split) > 1:
      return a.reshape(*a.shape[:-1], *split)
    if dim == 1 and tail < a.shape[-1]:
      return a.reshape(*a.shape[:-1], -1, *split)
  return a


def _shaped(a: Numbers, numbering: Numbering, first: int) -> Numbers:
  """`a`, factored if all its elements are of one weight of more dimensions."""
  w = numbering.weight_of(first)
  weight = numbering.weights[w]
  if a.ndim == 0 or a.ndim >= sum(n > 1 for n in weight.index_shape):
    return a
  others = (a >= 0) & ((a < numbering.starts[w]) | (a >= numbering.starts[w + 1]))
  return a if others.any() else _factored(a, weight)


def boxes_of(positions: Numbers, numbering: Numbering) -> tuple[list[Part], tuple[int, ...]]:
  """The parts of a local tensor and the shape that they index. Overwrites `positions`."""
  a = positions
  whole = a.reshape(-1)
  parts: list[Part] = []
  for begin in range(0, whole.size, 4 * _CHUNK):
    held = np.flatnonzero(whole[begin : begin + 4 * _CHUNK] >= 0) + begin
    if held.size and not parts:
      a = _shaped(a, numbering, int(whole[held[0]]))
    next_one = 0
    while next_one < held.size:
      parts.append(_grown(a, unravel(int(held[next_one]), a.shape), numbering))
      if len(parts) > MAX_PARTS:
        raise TracingError(f"more than {MAX_PARTS} boxes: its elements are in no order of boxes")
      next_one = _next_held(whole, held, next_one + 1)
  return parts, a.shape


def _grown(a: Numbers, at: tuple[int, ...], numbering: Numbering) -> Part:
  """The box that grows from an element. Marks its elements as taken."""
  w = numbering.weight_of(int(a[at]))
  growth = _Growth(a, at, numbering.weights[w], int(numbering.starts[w]))
  for axis in reversed(range(a.ndim)):
    growth.grow(axis)
  a[growth.index(0, growth.counts[0]) if a.ndim else ()] = TAKEN
  return growth.part(w)


def _next_held(whole: Numbers, held: npt.NDArray[np.intp], start: int) -> int:
  """The first entry of `held` from `start` on that no box has taken; looks ever farther."""
  width = 8
  while start < held.size:
    free = np.flatnonzero(whole[held[start : start + width]] >= 0)
    if free.size:
      return start + int(free[0])
    start += width
    width = min(width * 2, 1 << 22)
  return start


def count_of(positions: Numbers, value: int) -> int:
  return int(np.count_nonzero(positions == value))
