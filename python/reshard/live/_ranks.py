# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a group hold, and the layout that it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import reshard
from reshard import _core
from reshard.live._parts import Held
from reshard.tracing._types import torch_dtype

Ranks = dict[int, list[Held]]


class FullTensors:
  """The full tensors of a framework, by name: what each is made of.

  model    None: each full tensor is a tensor of a model of its own
  layouts  of one rank over the model, whose local tensors are full tensors; the first that has a
           name counts. The model's own tensors come last.
  """

  def __init__(self, model: _core.Model | None, layouts: Iterable[_core.Layout] = ()) -> None:
    self.model = model
    self._known = None if model is None else _core.FullTensors(model, list(layouts))

  def __contains__(self, name: str) -> bool:
    return self._known is not None and name in self._known

  def layout(self, name: str, ranks: Ranks, hint: str) -> _core.Layout:
    """The layout in which the ranks hold this.

    Raises NotFoundError for a full tensor that the model lacks (`hint` says what to do then),
    InvalidArgumentError for one of another shape.
    """
    if self._known is None:
      return _own(name, ranks).layout(name, ranks, hint)
    said = [
      (rank, [(h.name, h.whole, h.dtype, h.shape, h.runs) for h in here])
      for rank, here in sorted(ranks.items())
    ]
    return self._known.layout(name, said, hint)


def _own(name: str, ranks: Ranks) -> FullTensors:
  """The model of the full tensors themselves, in the order in which ranks name them first."""
  tensors: dict[str, tuple[Sequence[int], Any]] = {}
  for rank in sorted(ranks):
    for held in ranks[rank]:
      shape, _ = tensors.setdefault(held.whole, (held.shape, torch_dtype(held.dtype)))
      if tuple(shape) != held.shape:
        raise reshard.InvalidArgumentError(
          f"rank {rank}: '{held.whole}' has shape {list(held.shape)}, but {list(shape)} on another rank"
        )
  if not tensors:
    raise reshard.InvalidArgumentError(f"{name}: no rank holds a tensor")
  return FullTensors(_core.Model.from_tensors(name, tensors))


def unpacked(answers: Sequence[Any], offset: int) -> Ranks:
  """The ranks of a group that said what they hold; None: nothing, and not of the layout."""
  return {
    rank + offset: [Held.unpack(said) for said in answer]
    for rank, answer in enumerate(answers)
    if answer is not None
  }
