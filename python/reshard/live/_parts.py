# SPDX-License-Identifier: Apache-2.0
"""Parts of full tensors.

A framework cuts its own tensors: Megatron's `linear_qkv.weight`, say, which is made of three tensors
of the checkpoint. `Held` says which indices of a full tensor a rank holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from reshard._errors import InvalidArgumentError

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
