# SPDX-License-Identifier: Apache-2.0
"""Operations that move elements to places that strides do not say.

Most are run once more on the numbers of elements, and the numbers in the result say which element
went where: runs of numbers at one distance become copies of views. A few are followed without the
memory that this takes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from reshard.tracing import _operations as ops_of
from reshard.tracing._operations import tensors_in
from reshard.tracing._types import TracingError

# The most elements of a result that is followed by numbers, and the most copies that it may be.
_MAX_ELEMENTS, _MAX_RUNS = 1 << 27, 1 << 14
_ZERO, _CONSTANT = 0, -1


def moved(recorder: Any, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
  """The result of a move. NotImplemented if weights, or chance, say where elements go."""
  where = ops_of.MOVES[name]
  values = ops_of.bound(func, args, kwargs)
  chosen = list(tensors_in([values[i] for i in where]))
  if any(recorder.store(t) is not None for t in chosen):
    return NotImplemented
  if any(t.device.type == "meta" for t in chosen):
    raise TracingError(f"moves elements by {name} to places that recording does not see")
  out = _without_numbers(recorder, func, name, values)
  return _by_numbers(recorder, func, name, values) if out is None else out


def _without_numbers(recorder: Any, func: Any, name: str, values: list[Any]) -> torch.Tensor | None:
  """The result of an operation that narrow() and copy_() can express; None for others."""
  like = {"device": "meta"}
  if name in ("cat", "stack"):
    tensors = [recorder.as_meta(t) for t in values[0]]
    out: torch.Tensor = func(tensors, values[1])
    recorder.join(name, values[0], values[1], recorder.tracked(out))
    return out
  src = values[0]
  if name == "repeat":
    out = func(recorder.as_meta(src), values[1])
    recorder.repeat(src, values[1], recorder.tracked(out))
    return out
  if name == "flip":
    out = torch.empty(src.shape, dtype=src.dtype, **like)  # type: ignore[call-overload]
    recorder.flip(src, [d % src.ndim for d in values[1]], recorder.tracked(out))
    return out
  dim, index = _rows(name, values)
  if index is None:
    return None
  dim %= max(src.ndim, 1)
  shape = (*src.shape[:dim], index.numel(), *src.shape[dim + 1 :])
  out = torch.empty(shape, dtype=src.dtype, **like)  # type: ignore[call-overload]
  if index.numel() and not bool(((index >= -src.shape[dim]) & (index < src.shape[dim])).all()):
    raise IndexError(f"index out of range in dimension {dim} of {list(src.shape)}")
  recorder.select(src, dim, index, recorder.tracked(out))
  return out


def _rows(name: str, values: list[Any]) -> tuple[int, torch.Tensor | None]:
  """The dimension along which whole rows are chosen, and their numbers, if that is what an
  operation does."""
  if values[0].ndim == 0:
    return 0, None
  if name == "index_select" and values[2].ndim == 1:
    return values[1], values[2]
  if name == "index":
    given = [(dim, index) for dim, index in enumerate(values[1]) if index is not None]
    if len(given) == 1:
      dim, index = given[0]
      if index.ndim == 1 and index.dtype == torch.bool and index.shape[0] == values[0].shape[dim]:
        return dim, index.nonzero().flatten()
      if index.ndim == 1 and index.dtype not in (torch.bool, torch.uint8):
        return dim, index
  return 0, None


def _by_numbers(recorder: Any, func: Any, name: str, values: list[Any]) -> Any:
  where = ops_of.MOVES[name]
  if name.endswith("_") and recorder.store(values[0]) is None:
    weight = next(t for t in tensors_in(values) if recorder.store(t) is not None)
    recorder.adopt(values[0], name, recorder.name_of(weight))
  filler = ops_of.FILLERS.get(name.rstrip("_"))
  sources: list[tuple[int, torch.Tensor]] = []
  kept: dict[int, torch.Tensor] = {}
  next_one = 1

  def numbered(value: Any) -> Any:
    nonlocal next_one
    if not isinstance(value, torch.Tensor):
      return value
    if value.numel() > _MAX_ELEMENTS:
      raise TracingError(f"moves {value.numel()} elements by {name}: too many to record")
    if recorder.store(value) is None:
      zero = value.device.type != "meta" and not bool(value.count_nonzero())
      return torch.full(value.shape, _ZERO if zero else _CONSTANT, dtype=torch.int64, device="cpu")
    if id(value) not in kept:
      kept[id(value)] = value
      sources.append((next_one, value))
      next_one += value.numel()
    first = next(n for n, t in sources if t is value)
    return torch.arange(first, first + value.numel(), device="cpu").reshape(value.shape)

  given = []
  for i, value in enumerate(values):
    if i in where:
      value = tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, value)
    elif i == filler and ops_of.is_number(value):
      value = _ZERO if value == 0 else _CONSTANT
    else:
      value = tree_map(numbered, value)
    given.append(value)
  positional = [v for v, a in zip(given, func._schema.arguments, strict=True) if not a.kwarg_only]
  try:
    found = func(*positional)
  except NotImplementedError:
    raise TracingError(f"moves elements by {name}, which recording does not follow") from None
  if name.endswith("_"):
    made = _placed(recorder, found, sources, values[0].dtype)
    return recorder.copied(values[0], made)
  dtype = values[0][0].dtype if isinstance(values[0], list | tuple) else values[0].dtype
  if name == "where":
    dtype = torch.result_type(values[1], values[2])
  return tree_map(lambda numbers: _placed(recorder, numbers, sources, dtype), found)


def _placed(
  recorder: Any, numbers: torch.Tensor, sources: list[tuple[int, torch.Tensor]], dtype: torch.dtype
) -> torch.Tensor:
  """A tensor of the elements of these numbers."""
  out = torch.empty(numbers.shape, dtype=dtype, device="meta")
  recorder.track(out)
  flat: dict[int, torch.Tensor] = {}
  for at, first, count, step in _runs(numbers.reshape(-1)):
    into = out.as_strided((count,), (1,), at)
    if first == _ZERO:
      recorder.filled(into, 0)
      continue
    if first == _CONSTANT:
      recorder.overwrite(into, "a constant")
      continue
    while into.numel():
      begin, tensor = next((b, t) for b, t in reversed(sources) if b <= first)
      if begin not in flat:
        flat[begin] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        recorder.track(flat[begin])
        recorder.copy(flat[begin], tensor)
      left = (begin + tensor.numel() - 1 - first) // step + 1 if step else into.numel()
      part = into[:left]
      recorder.copy(part, flat[begin].as_strided(part.shape, (step,), first - begin))
      into, first = into[left:], first + left * step
  return out


def _runs(numbers: torch.Tensor) -> Iterator[tuple[int, int, int, int]]:
  """(place, first number, how many, distance) of runs of numbers at one distance, which is 0 or
  more."""
  found = numbers.tolist() if numbers.numel() <= 1 << 20 else None
  if found is None:
    changes = (numbers[1:] - numbers[:-1]).diff().count_nonzero()
    if int(changes) > 2 * _MAX_RUNS:
      raise TracingError("moves single elements in no order, too many to record")
    found = numbers.tolist()
  at, total = 0, 0
  while at < len(found):
    first = found[at]
    step = found[at + 1] - first if at + 1 < len(found) else 0
    end = at + 1
    if first > 0 and step >= 0:
      while end < len(found) and found[end] - found[end - 1] == step:
        end += 1
    elif first <= 0:
      step = 0
      while end < len(found) and found[end] == first:
        end += 1
    yield at, first, end - at, step if end - at > 1 else 0
    at, total = end, total + 1
    if total > _MAX_RUNS:
      raise TracingError("moves single elements in no order, too many to record")
