# SPDX-License-Identifier: Apache-2.0
"""Tracing by recording: run the loader on tensors without memory, and follow what it does.

The parameters and the tensors of the checkpoint are on torch's meta device, at full size. A
dispatch mode sees every operation. Views need no attention: torch itself says which elements of
which storage a view is. Copies, and the few operations that make new tensors of old ones, are
followed box by box (_stores.py).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from reshard.tracing import _stores
from reshard.tracing._modules import (
  built,
  named_tensors,
  persistent,
  replace_storage,
  wanted_names,
)
from reshard.tracing._numbers import Load
from reshard.tracing._stores import OPAQUE, ZERO, Piece, Run, Store, parts_of
from reshard.tracing._types import CONVERTIBLE, Local, RankTrace, TracingError, Weight

_MAPS = {
  (): "identity",
  ("exp", "neg"): "negated_exp",
  ("add 1",): "plus_one",
  ("sub 1",): "minus_one",
  ("add -1",): "minus_one",
}
# Operations with one input and an output of its shape that a value map may consist of.
_COMPUTED = {"exp": "exp", "neg": "neg"}
_SHIFTED = {"add": "add", "sub": "sub"}
_NEW_ZEROS = {"zeros", "zeros_like", "new_zeros"}
_NEW = _NEW_ZEROS | {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
  def __init__(self, weights: list[Weight]) -> None:
    super().__init__()  # type: ignore[no-untyped-call]
    self.weights = weights
    self.stores: dict[int, tuple[StorageWeakRef, Store, torch.dtype]] = {}
    self.loading = ""

  # -- stores

  def store(self, tensor: Any) -> Store | None:
    """What is known of the tensor's storage."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
      return None
    found = self.stores.get(tensor.untyped_storage()._cdata)
    return found[1] if found else None

  def dtype_of(self, tensor: torch.Tensor) -> torch.dtype:
    return self.stores[tensor.untyped_storage()._cdata][2]

  def track(self, tensor: torch.Tensor, shape: Sequence[int] | None = None) -> Store:
    """Begins to follow a new storage, of which the tensor is the whole."""
    if shape is None:
      strides = tensor.stride()
      order = sorted(range(tensor.ndim), key=lambda i: (-strides[i], i))
      shape = [tensor.shape[i] for i in order]
    store = Store(shape)
    storage = tensor.untyped_storage()
    if len(self.stores) > 1 << 14:
      live = {k: v for k, v in self.stores.items() if not v[0].expired()}  # type: ignore[no-untyped-call]
      self.stores = live
    weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    self.stores[storage._cdata] = (weak, store, tensor.dtype)
    return store

  def content(self, tensor: torch.Tensor, own: set[int]) -> Store | None:
    """What a tensor of the module holds after the load: its storage's content or, if the loader
    put another tensor (or a view of one) in its place, what it sees of that. `own`: the storages
    that the parameters had before."""
    store = self.store(tensor)
    if store is None or tensor.untyped_storage()._cdata in own:
      return store
    seen = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    self.track(seen)
    self.copy(seen, tensor)
    return self.store(seen)

  # -- what happens

  def __torch_dispatch__(
    self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
  ) -> Any:
    kwargs = dict(kwargs or {})
    name = func._schema.name.removeprefix("aten::")
    if name == "copy_":
      out = func(*args, **kwargs)  # refuses other shapes
      self.copy(args[0], args[1])
      return out
    if name in ("fill_", "zero_"):
      self.fill(args[0], args[1] if name == "fill_" else 0)
      return args[0]
    if name == "index_put_" or name == "index_copy_" or name == "masked_fill_":
      self.overwrite(args[0], name)
      return func(*args, **kwargs)
    inputs = [a for a in _tensors(args) if self.store(a) is not None]
    like = args[0].dtype if args and isinstance(args[0], torch.Tensor) else torch.get_default_dtype()
    if name in _NEW and (kwargs.get("dtype") or like).is_floating_point:
      kwargs["device"] = torch.device("meta")  # room for weights, on whatever device
    out = func(*args, **kwargs)
    if name in _NEW_ZEROS or (name in ("full", "full_like", "new_full") and not _fill(args)):
      self.fill(self.tracked(out), 0)
    elif name in _NEW:
      self.tracked(out)
    elif inputs:
      self.follow(name, args, out, inputs)
    return out

  def follow(self, name: str, args: Any, out: Any, inputs: list[torch.Tensor]) -> None:
    """An operation on tracked tensors."""
    plain = name.rstrip("_") if not name.startswith("_") else name
    outs = [t for t in _tensors((out,)) if self.store(t) is None and t.device.type == "meta"]
    if plain in _COMPUTED or (plain in _SHIFTED and len(inputs) == 1 and _is_number(args[1])):
      op = _COMPUTED.get(plain) or f"{plain} {args[1]:g}"
      target = self.tracked(out) if outs else None
      self.apply(inputs[0], target, op)
    elif name in ("clone", "_to_copy", "contiguous", "lift_fresh_copy") and outs:
      self.tracked(out)
      self.copy(out, inputs[0])
    elif name in ("cat", "stack"):
      self.join(name, args, self.tracked(out))
    elif name == "repeat":
      self.repeat(inputs[0], args[1], self.tracked(out))
    elif name == "index_select":
      self.select(inputs[0], args[1], args[2], self.tracked(out))
    elif name == "flip":
      self.flip(inputs[0], args[1], self.tracked(out))
    elif name.endswith("_") and not name.startswith("_") and self.store(args[0]) is not None:
      self.overwrite(args[0], plain)
    else:
      for tensor in outs:
        self.overwrite(self.tracked(tensor), name)

  def tracked(self, tensor: torch.Tensor) -> torch.Tensor:
    if self.store(tensor) is None and tensor.device.type == "meta":
      self.track(tensor)
    return tensor

  def copy(self, dst: torch.Tensor, src: torch.Tensor, ops: tuple[str, ...] = ()) -> None:
    into, out_of = self.store(dst), self.store(src)
    if into is None:
      return
    if out_of is None:
      self.overwrite(dst, "copy_ of values that are no weight's")
      return
    sizes = list(dst.shape)
    strides = [0] * (dst.ndim - src.ndim) + [
      stride if size > 1 else 0 for size, stride in zip(src.shape, src.stride(), strict=True)
    ]
    dims = list(zip(sizes, dst.stride(), strides, strict=True))
    ops = self.converted(dst, src) + ops
    offsets = (int(dst.storage_offset()), int(src.storage_offset()))
    source = out_of
    if into is out_of:
      source = Store(out_of.base)
      for piece in out_of.pieces():
        source.write(piece)
    _stores.copy(into, source, dims, offsets, ops)

  def converted(self, dst: torch.Tensor, src: torch.Tensor) -> tuple[str, ...]:
    """What a copy does to values or bits: "to float32", "bits", or an operation that is none of
    ours."""
    seen: tuple[str, ...] = ()
    for tensor in (src, dst):
      if tensor.dtype.itemsize != self.dtype_of(tensor).itemsize:
        raise TracingError(
          f"sees {self.dtype_of(tensor)} as {tensor.dtype}, of another width, which only tracing by "
          "numbers may follow"
        )
      if tensor.dtype != self.dtype_of(tensor):
        seen = ("bits",)
    if src.dtype == dst.dtype:
      return seen
    if src.dtype in CONVERTIBLE and dst.dtype in CONVERTIBLE:
      return (*seen, f"to {dst.dtype}")
    return (*seen, f"conversion from {src.dtype} to {dst.dtype}")

  def region(self, tensor: torch.Tensor, weight: int, ops: tuple[str, ...]) -> None:
    """Puts a constant where the tensor is."""
    store = self.store(tensor)
    if store is None or tensor.numel() == 0:
      return
    constant = Store(())
    constant.write(Piece((), weight, 0, ops))
    dims = [(n, s, 0) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    _stores.copy(store, constant, dims, (int(tensor.storage_offset()), 0))

  def fill(self, tensor: torch.Tensor, value: Any) -> None:
    if isinstance(value, torch.Tensor):
      value = value.item() if value.device.type != "meta" else None
    if value == 0:
      self.region(tensor, ZERO, ())
    else:
      self.overwrite(tensor, f"fill_ with {value}")

  def overwrite(self, tensor: torch.Tensor, op: str) -> None:
    self.region(tensor, OPAQUE, (op, self.loading))

  def apply(self, src: torch.Tensor, out: torch.Tensor | None, op: str) -> None:
    """A function of each value: into `out`, or in place."""
    if out is not None:
      self.copy(out, src, (op,))
      return
    between = torch.empty(src.shape, dtype=src.dtype, device="meta")
    self.track(between)
    self.copy(between, src, (op,))
    self.copy(src, between)

  def join(self, name: str, args: Any, out: torch.Tensor) -> None:
    dim = (args[1] if len(args) > 1 else 0) % max(out.ndim, 1)
    at = 0
    for tensor in args[0]:
      if name == "stack":
        self.copy(out.select(dim, at), tensor)
        at += 1
      elif tensor.numel():
        self.copy(out.narrow(dim, at, tensor.shape[dim]), tensor)
        at += tensor.shape[dim]

  def repeat(self, src: torch.Tensor, repeats: Sequence[int], out: torch.Tensor) -> None:
    sizes = [1] * (out.ndim - src.ndim) + list(src.shape)
    for which in itertools.product(*(range(r) for r in repeats)):
      part = out
      for dim, (i, size) in enumerate(zip(which, sizes, strict=True)):
        part = part.narrow(dim, i * size, size)
      self.copy(part, src)

  def select(self, src: torch.Tensor, dim: int, index: torch.Tensor, out: torch.Tensor) -> None:
    if index.device.type == "meta":
      self.overwrite(out, "index_select by values that are not known")
      return
    for i, wanted in enumerate(index.tolist()):
      self.copy(out.narrow(dim, i, 1), src.narrow(dim, wanted, 1))

  def flip(self, src: torch.Tensor, dims: Sequence[int], out: torch.Tensor) -> None:
    if not dims:
      self.copy(out, src)
      return
    for i in range(src.shape[dims[0]]):
      to = src.shape[dims[0]] - 1 - i
      self.flip(src.narrow(dims[0], i, 1), dims[1:], out.narrow(dims[0], to, 1))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
  for value in values:
    if isinstance(value, torch.Tensor):
      yield value
    elif isinstance(value, list | tuple):
      yield from _tensors(value)


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _fill(args: Any) -> Any:
  return args[-1] if len(args) > 1 and _is_number(args[-1]) else None


def trace_recording(
  build: Callable[[int], Any], load: Load, weights: list[Weight], rank: int
) -> RankTrace:
  """Traces one rank without memory for its elements."""
  recorder = _Recorder(weights)

  def recorded() -> Iterator[tuple[str, torch.Tensor]]:
    for i, w in enumerate(weights):
      recorder.loading = w.name
      tensor = torch.empty(w.shape, dtype=w.dtype, device="meta")
      store = recorder.track(tensor, w.index_shape)
      runs = [
        Run(0, n, 1, s) if n > 1 else Run(0)
        for n, s in zip(w.index_shape, w.strides, strict=True)
      ]
      if w.size:
        store.write(Piece(tuple(runs), i))
      yield w.name, tensor
    recorder.loading = ""

  def fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

  with built(build, rank, "meta") as module:
    names = wanted_names(module, {w.name for w in weights})
    replace_storage(module, fresh, names)
    held = {n: t for n, t in named_tensors(module).items() if n in names}
    keep = persistent(module)
    for tensor in held.values():
      if recorder.store(tensor) is None:
        recorder.track(tensor, tensor.shape)
    try:
      with torch.no_grad(), recorder:
        load(module, recorded())
    except TracingError as error:
      raise TracingError(f"'{recorder.loading}': the loader {error}") from None
    trace = RankTrace({}, {})
    own = {t.untyped_storage()._cdata for t in held.values()}
    keep |= (loaded := wanted_names(module, {w.name for w in weights}))
    for name, tensor in named_tensors(module).items():
      if name in loaded and (store := recorder.content(tensor, own)) is not None:
        _read(trace, name, tensor, store, weights, name in keep)
  return trace


def _read(
  trace: RankTrace,
  name: str,
  tensor: torch.Tensor,
  store: Store,
  weights: list[Weight],
  is_persistent: bool,
) -> None:
  pieces = store.pieces()
  written = sum(piece.size for piece in pieces)
  untouched = tensor.numel() - written
  if untouched and is_persistent:
    trace.untouched[name] = untouched
  if not pieces:
    return
  local = Local(
    name, tensor.dtype, tuple(tensor.shape), tuple(store.base), [],
    sum(p.size for p in pieces if p.weight == ZERO), untouched,
  )  # fmt: skip
  maps, bits = set(), False
  for piece in sorted(pieces, key=lambda p: tuple(run.begin for run in p.runs)):
    if piece.weight == ZERO:
      continue
    if piece.weight == OPAQUE:
      raise TracingError(f"'{name}': holds the result of {piece.ops[0]} while '{piece.ops[1]}' is loaded")
    maps.add(_map_of(name, piece, weights))
    bits |= "bits" in piece.ops
    local.parts += parts_of(piece, piece.weight, weights[piece.weight])
  if len(maps) > 1:
    raise TracingError(f"'{name}': some of its values are computed in one way, some in another")
  if maps:
    local.map = maps.pop()
  kinds = {weights[p.weight].dtype for p in local.parts}
  if len(kinds) == 1 and (kind := kinds.pop()) != tensor.dtype:
    local.dtype, local.casts = (kind, False) if bits else (tensor.dtype, True)
  trace.locals[name] = local


def _map_of(name: str, piece: Piece, weights: list[Weight]) -> str:
  """The value map that the operations on a piece are."""
  ops = tuple(op for op in piece.ops if op != "bits" and not op.startswith("to "))
  if ops in _MAPS and not (ops and "bits" in piece.ops):
    return _MAPS[ops]
  raise TracingError(
    f"'{name}': the loader computes {', '.join(ops)} of '{weights[piece.weight].name}', which is "
    "none of the known maps (-exp(x), x + 1, x - 1)"
  )
