# SPDX-License-Identifier: Apache-2.0
"""Parts of full tensors as parts of the model's tensors.

A framework cuts its own tensors: Megatron's `linear_qkv.weight`, say, which is made of three tensors
of the checkpoint. `Whole` says what a full tensor of the framework is made of, as a layout of one
rank has it; `Held` says which indices of it a rank holds; `composed()` puts both together.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from reshard._errors import InvalidArgumentError, UnsupportedError
from reshard.tracing._types import Local, Part, row_major, torch_dtype, unravel

Run = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Held:
  """A local tensor of a rank, as a part of a full tensor.

  runs[d] are the indices of dimension d that the rank holds, as [begin, end), in the order in which
  it stores them.
  """

  name: str  # in the rank's module
  whole: str  # of the full tensor
  dtype: str  # "BF16"
  shape: tuple[int, ...]  # of the full tensor
  runs: tuple[tuple[Run, ...], ...]

  @property
  def local_shape(self) -> tuple[int, ...]:
    return tuple(sum(end - begin for begin, end in runs) for runs in self.runs)

  def pack(self) -> list[Any]:
    """As JSON; dimensions that are whole are null."""
    runs = [
      None if here == ((0, size),) else [list(run) for run in here]
      for here, size in zip(self.runs, self.shape, strict=True)
    ]
    return [self.name, self.whole, self.dtype, list(self.shape), runs]

  @staticmethod
  def unpack(said: Sequence[Any]) -> Held:
    """What `pack()` was called on. Raises InvalidArgumentError for runs outside the shape."""
    name, whole, dtype, shape, packed = said
    sizes = tuple(int(n) for n in shape)
    runs = tuple(
      ((0, size),) if here is None else tuple((int(begin), int(end)) for begin, end in here)
      for here, size in zip(packed, sizes, strict=True)
    )
    for here, size in zip(runs, sizes, strict=True):
      if any(not 0 <= begin <= end <= size for begin, end in here):
        raise InvalidArgumentError(f"'{name}': runs {here} of a dimension of {size}")
    return Held(str(name), str(whole), str(dtype), sizes, runs)


def whole_runs(shape: Sequence[int]) -> tuple[tuple[Run, ...], ...]:
  """Of a tensor that is not cut."""
  return tuple(((0, int(n)),) for n in shape)


@dataclasses.dataclass(frozen=True)
class _Axis:
  """A dimension of a box that runs along a dimension of the full tensor."""

  of: int  # dimension of the box
  dim: int  # of the full tensor
  step: int
  size: int


@dataclasses.dataclass(frozen=True)
class _Box:
  """A box of a weight, and where it is in the full tensor."""

  weight: int
  begin: tuple[int, ...]
  end: tuple[int, ...]
  at: tuple[int, ...]
  axes: tuple[tuple[_Axis, ...], ...]  # for each dimension of the full tensor, largest step first


@dataclasses.dataclass(frozen=True)
class Whole:
  """A full tensor: boxes of the model's tensors."""

  shape: tuple[int, ...]
  map: str
  boxes: tuple[_Box, ...]
  # Where two dimensions of a box run along one of the full tensor: the step of the first; else 1.
  minor: tuple[int, ...]

  @staticmethod
  def of_weight(weight: int, index_shape: Sequence[int], shape: Sequence[int]) -> Whole:
    """A tensor of the model itself."""
    begin, end = (0,) * len(index_shape), tuple(index_shape)
    return _whole("", shape, "identity", [(weight, begin, end, 0, row_major(index_shape))])

  @staticmethod
  def of_local(tensor: Any, numbers: dict[str, int]) -> Whole:
    """A reshard.LocalTensor of a layout's only rank. `numbers`: of the model's tensors."""
    fragments = [
      (
        numbers[f.tensor],
        tuple(begin for begin, _ in f.box),
        tuple(end for _, end in f.box),
        f.offset,
        tuple(f.strides),
      )
      for f in tensor.fragments
    ]
    return _whole(tensor.name, tensor.shape, tensor.map, fragments)


_Fragment = tuple[int, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]


def _whole(name: str, shape: Sequence[int], map_: str, fragments: list[_Fragment]) -> Whole:
  sizes = tuple(int(n) for n in shape)
  strides = row_major(sizes)
  boxes, minor = [], [1] * len(sizes)
  for weight, begin, end, offset, steps in fragments:
    if any(low >= high for low, high in zip(begin, end, strict=True)):
      continue  # of a tensor without elements
    axes: list[list[_Axis]] = [[] for _ in sizes]
    for of, step in enumerate(steps):
      size = end[of] - begin[of]
      if size == 1:
        continue
      axis = _axis(name, of, step, size, sizes, strides)
      axes[axis.dim].append(axis)
    for dim, here in enumerate(axes):
      here.sort(key=lambda axis: -axis.step)
      if len(here) > 2:
        raise UnsupportedError(f"'{name}': three dimensions of a box along one of the tensor's")
      if len(here) == 2:
        minor[dim] = here[0].step
    boxes.append(_Box(weight, begin, end, unravel(offset, sizes), tuple(map(tuple, axes))))
  return Whole(sizes, map_, tuple(boxes), tuple(minor))


def _axis(
  name: str, of: int, step: int, size: int, shape: Sequence[int], strides: Sequence[int]
) -> _Axis:
  for dim, stride in enumerate(strides):
    along, left = divmod(step, stride)
    if left == 0 and 0 < along and (size - 1) * along < shape[dim]:
      return _Axis(of, dim, along, size)
  raise UnsupportedError(f"'{name}': a box that runs along no dimension of {list(shape)}")


def _cut(axes: Sequence[_Axis], begin: int, end: int) -> Iterator[tuple[Run, ...]]:
  """The indices on nested axes whose positions are in [begin, end), as boxes."""
  if not axes:
    if begin <= 0 < end:
      yield ()
    return
  first, rest = axes[0], axes[1:]
  span = sum((axis.size - 1) * axis.step for axis in rest)
  low = max(0, -(-(begin - span) // first.step))
  high = min(first.size - 1, (end - 1) // first.step)
  # Those of which every position is inside.
  whole_low = max(low, -(-begin // first.step))
  whole_high = min(high, (end - 1 - span) // first.step)
  if whole_low > whole_high:
    whole_low, whole_high = high + 1, high
  for k in range(low, whole_low):
    yield from _cut_at(first, rest, k, begin, end)
  if whole_low <= whole_high:
    yield ((whole_low, whole_high + 1), *((0, axis.size) for axis in rest))
  for k in range(whole_high + 1, high + 1):
    yield from _cut_at(first, rest, k, begin, end)


def _cut_at(
  first: _Axis, rest: Sequence[_Axis], k: int, begin: int, end: int
) -> Iterator[tuple[Run, ...]]:
  for tail in _cut(rest, begin - k * first.step, end - k * first.step):
    yield ((k, k + 1), *tail)


@dataclasses.dataclass(frozen=True)
class _Dim:
  """How a dimension of the local tensor is counted: as one, or as two with `minor` indices each."""

  first: int  # of the index shape
  minor: int  # 1: one dimension
  flat: bool  # one dimension, though two of a box run along it


def _dims(whole: Whole, held: Held) -> tuple[list[_Dim], tuple[int, ...]]:
  dims: list[_Dim] = []
  index_shape: list[int] = []
  for minor, runs, size in zip(whole.minor, held.runs, held.local_shape, strict=True):
    halves = minor > 1 and all(b % minor == 0 and e % minor == 0 for b, e in runs)
    dims.append(_Dim(len(index_shape), minor if halves else 1, minor > 1 and not halves))
    index_shape += [size // minor, minor] if halves else [size]
  return dims, tuple(index_shape)


def composed(held: Held, whole: Whole, stored: Sequence[str]) -> Local:
  """What a rank holds, in boxes of the model's tensors.

  `stored`: their dtypes. Raises InvalidArgumentError if the full tensor has another shape.
  """
  if held.shape != whole.shape:
    raise InvalidArgumentError(
      f"'{held.name}': the full tensor '{held.whole}' has shape {list(held.shape)}, but the model "
      f"says {list(whole.shape)}"
    )
  dims, index_shape = _dims(whole, held)
  parts = [part for box in whole.boxes for part in _parts(box, held, dims, len(index_shape))]
  return Local(
    name=held.name,
    dtype=torch_dtype(held.dtype),
    shape=held.local_shape,
    index_shape=index_shape,
    parts=parts,
    padding=math.prod(held.local_shape) - sum(part.size for part in parts),
    map=whole.map,
    casts=any(stored[part.weight] != held.dtype for part in parts),
  )


# Along one dimension of the full tensor: the range of each axis, and their first index in the local
# tensor.
_Piece = tuple[tuple[Run, ...], int]


def _parts(box: _Box, held: Held, dims: Sequence[_Dim], rank: int) -> Iterator[Part]:
  choices: list[list[_Piece]] = []
  for at, axes, runs, dim in zip(box.at, box.axes, held.runs, dims, strict=True):
    choices.append(list(_pieces(at, axes, runs, dim)))
    if not choices[-1]:
      return
  for pieces in itertools.product(*choices):
    yield _part(box, pieces, dims, rank)


def _pieces(at: int, axes: Sequence[_Axis], runs: Sequence[Run], dim: _Dim) -> Iterator[_Piece]:
  local = 0
  for begin, end in runs:
    for cut in _cut(axes, begin - at, end - at):
      for ranges in _single(cut) if dim.flat else (cut,):
        first = sum(low * axis.step for (low, _), axis in zip(ranges, axes, strict=True))
        yield ranges, at + first - begin + local
    local += end - begin


def _single(ranges: tuple[Run, ...]) -> Iterator[tuple[Run, ...]]:
  """The same with one index of the first axis each, if there are two."""
  if len(ranges) < 2 or ranges[1][1] - ranges[1][0] == 1:
    yield ranges
    return
  for k in range(*ranges[0]):
    yield ((k, k + 1), *ranges[1:])


def _part(box: _Box, pieces: Sequence[_Piece], dims: Sequence[_Dim], rank: int) -> Part:
  begin, end = list(box.begin), list(box.end)
  along: list[int | None] = [None] * len(begin)
  steps, at = [1] * len(begin), [0] * rank
  for axes, (ranges, where), dim in zip(box.axes, pieces, dims, strict=True):
    if dim.minor > 1:
      at[dim.first], at[dim.first + 1] = divmod(where, dim.minor)
    else:
      at[dim.first] = where
    for axis, (low, high) in zip(axes, ranges, strict=True):
      end[axis.of] = begin[axis.of] + high
      begin[axis.of] += low
      if high - low > 1:
        along[axis.of], steps[axis.of] = _along(axis, dim)
  return Part(box.weight, tuple(begin), tuple(end), tuple(at), tuple(along), tuple(steps))


def _along(axis: _Axis, dim: _Dim) -> tuple[int, int]:
  if dim.minor == 1:
    return dim.first, axis.step
  if axis.step % dim.minor == 0:
    return dim.first, axis.step // dim.minor
  return dim.first + 1, axis.step
