# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a group hold, and the layout that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import reshard
from reshard import _core
from reshard.live._parts import Held, Whole, composed
from reshard.tracing import _text, _weights
from reshard.tracing._types import Local, RankTrace, Weight, safetensors_name, torch_dtype

Ranks = dict[int, list[Held]]


class FullTensors:
  """The full tensors of a framework, by name: what each is made of.

  model    None: each full tensor is a tensor of a model of its own
  layouts  of one rank over the model, whose local tensors are full tensors; the first that has a
           name counts. The model's own tensors come last.
  """

  def __init__(self, model: _core.Model | None, layouts: Iterable[_core.Layout] = ()) -> None:
    self.model = model
    self._weights: list[Weight] = []
    self._sources: dict[str, Callable[[], Whole]] = {}
    self._made: dict[str, Whole] = {}
    if model is None:
      return
    self._weights = _weights.of_model(model)
    numbers = {weight.name: i for i, weight in enumerate(self._weights)}
    for layout in layouts:
      for tensor in layout.local(layout.ranks[0]):
        self._sources.setdefault(tensor.name, partial(Whole.of_local, tensor, numbers))
    for i, weight in enumerate(self._weights):
      self._sources.setdefault(
        weight.name, partial(Whole.of_weight, i, weight.index_shape, weight.shape)
      )

  def __contains__(self, name: str) -> bool:
    return name in self._sources

  def __getitem__(self, name: str) -> Whole:
    if name not in self._made:
      self._made[name] = self._sources[name]()
    return self._made[name]

  def layout(self, name: str, ranks: Ranks, hint: str) -> _core.Layout:
    """The layout in which the ranks hold this.

    Raises NotFoundError for a full tensor that the model lacks (`hint` says what to do then),
    InvalidArgumentError for one of another shape.
    """
    if self.model is None:
      return _own(name, ranks).layout(name, ranks, hint)
    stored = [safetensors_name(weight.dtype) for weight in self._weights]
    known: dict[Held, Local] = {}
    traces = {rank: RankTrace({}, {}) for rank in sorted(ranks)}
    for rank, here in sorted(ranks.items()):
      for held in here:
        if held not in known:
          known[held] = composed(held, self._find(held, rank, hint), stored)
        traces[rank].locals[held.name] = known[held]
    return _core.explicit_layout(_text.layout_text(name, self._weights, traces), self.model)

  def _find(self, held: Held, rank: int, hint: str) -> Whole:
    if held.whole not in self:
      also = "" if held.whole == held.name else f" (local name '{held.name}')"
      raise reshard.NotFoundError(
        f"rank {rank}: the model '{self.model.name if self.model else ''}' has no tensor "
        f"'{held.whole}'{also}; {hint}"
      )
    return self[held.whole]


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
