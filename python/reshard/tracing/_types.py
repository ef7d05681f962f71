# SPDX-License-Identifier: Apache-2.0
"""What both tracers share: the tensors of a checkpoint, and what a rank was seen to hold."""

import dataclasses
import math
from collections.abc import Sequence

import torch

from reshard._errors import UnsupportedError

MAX_DIMS = 8
# The largest number of parts of one local tensor.
MAX_PARTS = 1 << 20

# torch's name -> the name in a safetensors header.
_SAFETENSORS = {
  "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2",
  "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
  "float8_e5m2fnuz": "F8_E5M2FNUZ", "int16": "I16", "uint16": "U16", "float16": "F16",
  "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "float32": "F32", "float64": "F64",
  "int64": "I64", "uint64": "U64",
}  # fmt: skip
_TORCH: dict[str, torch.dtype] = {
  st: getattr(torch, name) for name, st in _SAFETENSORS.items() if hasattr(torch, name)
}
# Values are converted between these; between others only bits are kept.
CONVERTIBLE = (torch.float32, torch.bfloat16, torch.float16)


class TracingError(UnsupportedError):
  """An engine's loader did what no layout describes, or what a tracer cannot follow."""

  __module__ = "reshard.tracing"
  # True for a loader that was seen to compute or to look at values: no other way of tracing may
  # then be tried.
  final = False


def refusal(text: str) -> TracingError:
  """A final error."""
  error = TracingError(text)
  error.final = True
  return error


def safetensors_name(dtype: torch.dtype) -> str:
  """ "BF16" for torch.bfloat16."""
  name = str(dtype).removeprefix("torch.")
  if name not in _SAFETENSORS:
    raise TracingError(f"dtype {name} has no counterpart in safetensors")
  return _SAFETENSORS[name]


def torch_dtype(name: str) -> torch.dtype:
  """torch.bfloat16 for "BF16"."""
  if name not in _TORCH:
    raise TracingError(f"torch has no dtype for {name}")
  return _TORCH[name]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
  """The strides of a contiguous tensor, in elements."""
  strides = [1] * len(shape)
  for k in range(len(shape) - 2, -1, -1):
    strides[k] = strides[k + 1] * shape[k + 1]
  return tuple(strides)


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
  """The coordinates of a row-major element number; zeros in a shape without elements."""
  at = []
  for size in reversed(shape):
    index, here = divmod(index, size) if size else (0, 0)
    at.append(here)
  return tuple(reversed(at))


def merged_dims(index_shape: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
  """The k for which dimensions k and k + 1 of `index_shape` are one dimension of `shape`."""
  merged, k = [], 0
  for i, size in enumerate(shape):
    product = index_shape[k] if k < len(index_shape) else -1
    last = i == len(shape) - 1
    while product != size or (last and k < len(index_shape) - 1):
      if k + 1 >= len(index_shape):
        raise ValueError(f"{list(index_shape)} does not split {list(shape)}")
      merged.append(k)
      k += 1
      product *= index_shape[k]
    k += 1
  return tuple(merged)


@dataclasses.dataclass(frozen=True)
class Weight:
  """A canonical tensor: one that the checkpoint holds and the engine's loader is given."""

  name: str
  shape: tuple[int, ...]  # as the loader sees it
  dtype: torch.dtype
  index_shape: tuple[int, ...] = ()  # as boxes index it; usually `shape`
  strides: tuple[int, ...] = dataclasses.field(init=False)  # of index_shape, row-major

  def __post_init__(self) -> None:
    if not self.index_shape:
      object.__setattr__(self, "index_shape", self.shape)
    object.__setattr__(self, "strides", row_major(self.index_shape))

  @property
  def size(self) -> int:
    return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Part:
  """A box of a weight, and where it is in the local tensor: reshard.PlacedBox.

  Dimension i of the box runs along dimension dims[i] of the local tensor in steps of steps[i]; None
  for a dimension of size 1 that needs none.
  """

  weight: int
  begin: tuple[int, ...]
  end: tuple[int, ...]
  at: tuple[int, ...]
  dims: tuple[int | None, ...]
  steps: tuple[int, ...]

  @property
  def size(self) -> int:
    return math.prod(e - b for b, e in zip(self.begin, self.end, strict=True))


@dataclasses.dataclass
class Local:
  """What one parameter or buffer of one rank holds after the load."""

  name: str
  dtype: torch.dtype
  shape: tuple[int, ...]
  index_shape: tuple[int, ...]
  parts: list[Part]
  padding: int = 0  # elements filled with zeros
  untouched: int = 0  # elements that the loader did not write
  map: str = "identity"
  casts: bool = False

  def placed(self) -> "Local":
    """The same with a full dimension for every dimension of every box.

    Boxes of more dimensions than the local tensor get leading dimensions of size 1, merged with
    the first.
    """
    rank = len(self.index_shape)
    spare = 0
    for part in self.parts:
      spare = max(spare, len(part.dims) - rank)
    if rank + spare > MAX_DIMS:
      raise TracingError(f"'{self.name}' needs more than {MAX_DIMS} dimensions")
    if rank == 0 and spare == 0:
      return self
    parts = [_with_all_dims(part, spare, rank + spare) for part in self.parts]
    return dataclasses.replace(
      self, index_shape=(1,) * spare + tuple(self.index_shape), parts=parts
    )


def _with_all_dims(part: Part, spare: int, rank: int) -> Part:
  dims = [None if k is None else k + spare for k in part.dims]
  free = iter(k for k in range(rank) if k not in dims)
  dims = [next(free) if k is None else k for k in dims]
  return dataclasses.replace(part, at=(0,) * spare + part.at, dims=tuple(dims))


@dataclasses.dataclass
class RankTrace:
  """What one rank holds: its local tensors by name, and what its loader left alone."""

  locals: dict[str, Local]
  untouched: dict[str, int]  # parameters, and how many of their elements nothing wrote
  # Buffers into which the loader wrote other values than a weight's, and how.
  constants: dict[str, str] = dataclasses.field(default_factory=dict)
