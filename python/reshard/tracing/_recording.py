# SPDX-License-Identifier: Apache-2.0
"""Tracing by recording: run the loader on tensors without memory, and follow what it does.

The parameters and the tensors of the checkpoint are on torch's meta device, at full size.
_recorder.py follows the loader; here the storages of the module are read afterwards.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from reshard.tracing import _casts
from reshard.tracing._guard import Load, run, storage_of, unseen
from reshard.tracing._modules import (
  attribute_tensors,
  built,
  give_copies,
  named_tensors,
  persistent,
  replace_storage,
  wanted_names,
)
from reshard.tracing._recorder import Recorder
from reshard.tracing._stores import OPAQUE, ZERO, Piece, Run, Store, parts_of
from reshard.tracing._types import Local, RankTrace, TracingError, Weight, refusal

# Where a tensor is in its storage.
_View = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


def trace_recording(
  build: Callable[[int], Any], load: Load, weights: list[Weight], rank: int
) -> RankTrace:
  """Traces one rank without memory for its elements."""
  recorder = Recorder(weights)

  def recorded() -> Iterator[tuple[str, torch.Tensor]]:
    for i, w in enumerate(weights):
      recorder.loading = w.name
      with unseen():
        tensor = _recorded(recorder, i, w)
      yield w.name, tensor
    recorder.loading = ""

  def fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

  with built(build, rank, "meta") as module:
    before = named_tensors(module)
    names = wanted_names(module, {w.name for w in weights})
    replace_storage(module, fresh, names)
    tables = {n for n, t in before.items() if n not in names and t.device.type != "meta"}
    give_copies(module, tables)
    keep = persistent(module)
    own: dict[int, _View] = {}  # by storage
    for name, tensor in named_tensors(module).items():
      own[storage_of(tensor)] = _view_of(tensor)
      if name in tables:
        recorder.tables[storage_of(tensor)] = (name, tensor)
      elif recorder.store(tensor) is None:
        recorder.track(tensor, tensor.shape)
    run(recorder, load, module, recorded())
    trace = RankTrace({}, {}, {n: op for n, op in recorder.constants.items() if n in keep})
    for name, tensor in named_tensors(module).items():
      is_own = own.get(storage_of(tensor)) == _view_of(tensor)
      store = _content(recorder, name, tensor, is_own, trace)
      if store is not None and storage_of(tensor) not in own and _size(store) < tensor.numel():
        raise refusal(f"'{name}': holds memory that nothing has written")
      if store is not None:
        is_kept = name in keep or name not in before
        _read(trace, name, tensor, store, weights, is_kept)
    _refuse_attributes(recorder, module)
  return trace


def _recorded(recorder: Recorder, number: int, weight: Weight) -> torch.Tensor:
  """A weight whose elements the recorder knows."""
  tensor = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
  store = recorder.track(tensor, weight.index_shape)
  runs = [
    Run(0, n, 1, s) if n > 1 else Run(0)
    for n, s in zip(weight.index_shape, weight.strides, strict=True)
  ]
  if weight.size:
    store.write(Piece(tuple(runs), number))
  return tensor


def _view_of(tensor: torch.Tensor) -> _View:
  return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


def _content(
  recorder: Recorder, name: str, tensor: torch.Tensor, is_own: bool, trace: RankTrace
) -> Store | None:
  """What a tensor of the module holds after the load: its storage's content or, if the loader put
  another tensor (or a view of one) in its place, what it sees of that. None if it holds the values
  that it had."""
  store = recorder.store(tensor)
  if store is not None and is_own:
    return store
  if store is not None:
    seen = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    recorder.track(seen)
    try:
      recorder.copy(seen, tensor)
    except TracingError as error:
      raise TracingError(f"'{name}': the loader {error}") from None
    return recorder.store(seen)
  if not is_own and isinstance(tensor, torch.nn.Parameter) and tensor.numel():
    raise refusal(f"'{name}': the loader puts other values than a weight's in its place")
  if not is_own and tensor.numel():
    trace.constants.setdefault(name, "other values")
  return None


def _size(store: Store) -> int:
  return sum(piece.size for piece in store.pieces())


def _refuse_attributes(recorder: Recorder, module: torch.nn.Module) -> None:
  """Raises for values of weights that the module keeps where no layout reaches."""
  own = {storage_of(t) for t in named_tensors(module).values()}
  for name, tensor in attribute_tensors(module):
    store = recorder.store(tensor)
    if store is not None and storage_of(tensor) not in own and any(
      piece.weight >= 0 or (piece.weight == OPAQUE and piece.ops[1]) for piece in store.pieces()
    ):
      raise refusal(
        f"'{name}': the loader keeps values of '{recorder.name_of(tensor)}' there, in an attribute "
        "that is neither parameter nor buffer"
      )


def _read(
  trace: RankTrace,
  name: str,
  tensor: torch.Tensor,
  store: Store,
  weights: list[Weight],
  is_persistent: bool,
) -> None:
  pieces = store.pieces()
  untouched = tensor.numel() - _size(store)
  if untouched and is_persistent:
    trace.untouched[name] = untouched
  if not pieces:
    return
  local = Local(
    name, tensor.dtype, tuple(tensor.shape), tuple(store.base), [],
    sum(p.size for p in pieces if p.weight == ZERO), untouched,
  )  # fmt: skip
  maps, bits = set(), set()
  for piece in sorted(pieces, key=lambda p: tuple(run.begin for run in p.runs)):
    if piece.weight == ZERO:
      continue
    if piece.weight == OPAQUE:
      raise refusal(f"'{name}': holds the result of {piece.ops[0]} while '{piece.ops[1]}' is loaded")
    weight = weights[piece.weight]
    value_map, as_bits, wrong = _casts.meaning(piece.ops, weight.dtype, tensor.dtype)
    if wrong:
      raise refusal(
        f"'{name}': the loader {wrong} of '{weight.name}'; the known maps are {_casts.KNOWN_MAPS}, "
        "and one cast"
      )
    maps.add(value_map)
    if weight.dtype != tensor.dtype:
      bits.add(as_bits)
    local.parts += parts_of(piece, piece.weight, weight)
  if len(maps) > 1:
    raise refusal(f"'{name}': some of its values are computed in one way, some in another")
  if maps:
    local.map = maps.pop()
  kinds = {weights[p.weight].dtype for p in local.parts}
  if kinds - {tensor.dtype}:
    if bits == {True} and len(kinds) == 1:
      local.dtype = kinds.pop()
    elif bits == {False}:
      local.casts = True
    else:
      raise refusal(f"'{name}': holds bits of {', '.join(map(str, kinds))} in one {tensor.dtype}")
  trace.locals[name] = local
