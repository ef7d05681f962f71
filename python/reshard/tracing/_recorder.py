# SPDX-License-Identifier: Apache-2.0
"""The dispatch mode of tracing by recording.

Weights and parameters are on torch's meta device. The mode sees every operation. Views need no
attention: torch itself says which elements of which storage a view is. Operations that move values
are followed box by box (_stores.py). What any other operation writes is opaque from then on; it may
reach no parameter, and nothing may look at it.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map

from reshard.tracing import _casts, _moves, _stores
from reshard.tracing import _operations as ops_of
from reshard.tracing._guard import Guard, storage_of
from reshard.tracing._operations import tensors_in
from reshard.tracing._stores import OPAQUE, ZERO, Piece, Store
from reshard.tracing._types import CONVERTIBLE, TracingError, Weight

_NO_WEIGHT = "values that are no weight's"


class Recorder(Guard):
  """Follows what a loader does.

  weights  that the loader is given
  """

  def __init__(self, weights: list[Weight]) -> None:
    super().__init__()
    self.weights = weights
    self.stores: dict[int, tuple[StorageWeakRef, Store, torch.dtype]] = {}

  # -- stores

  def store(self, tensor: Any) -> Store | None:
    """What is known of the tensor's storage."""
    if not isinstance(tensor, torch.Tensor):
      return None
    found = self.stores.get(storage_of(tensor))
    return found[1] if found and not found[0].expired() else None  # type: ignore[no-untyped-call]

  def follows(self, tensor: torch.Tensor) -> bool:
    return self.store(tensor) is not None

  def name_of(self, tensor: torch.Tensor) -> str:
    store = self.store(tensor)
    for piece in store.pieces() if store else ():
      if piece.weight >= 0:
        return self.weights[piece.weight].name
      if piece.weight == OPAQUE and piece.ops[1]:
        return piece.ops[1]
    return self.loading

  def dtype_of(self, tensor: torch.Tensor) -> torch.dtype:
    return self.stores[storage_of(tensor)][2]

  def track(self, tensor: torch.Tensor, shape: Sequence[int] | None = None) -> Store:
    """Begins to follow a new storage, of which the tensor is the whole."""
    if tensor.layout != torch.strided:
      self.refuse(f"'{self.loading}': the loader makes a tensor of layout {tensor.layout} of it")
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

  def tracked(self, tensor: torch.Tensor) -> torch.Tensor:
    if self.store(tensor) is None:
      self.track(tensor)
    return tensor

  def adopt(self, tensor: torch.Tensor, operation: str, weight: str) -> None:
    """Begins to follow real memory into which a weight is written: a buffer of the module, or what
    the loader has made."""
    if found := self.tables.get(storage_of(tensor)):
      self.track(found[1], found[1].shape)
      return
    if not self.was_made(tensor):
      self.outside(operation, weight)
    whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
    self.track(whole, whole.shape)
    if tensor.device.type != "meta" and not bool(whole.count_nonzero()):
      self.region(whole, ZERO, ())
    else:
      self.overwrite(whole, _NO_WEIGHT)

  # -- what happens

  def operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    inputs = [t for t in tensors_in((args, kwargs)) if self.store(t) is not None]
    if not inputs:
      return self.of_no_weight(func, args, kwargs)
    name = ops_of.name_of(func)
    if name in ops_of.VIEWS or name in ops_of.QUESTIONS:
      return func(*args, **kwargs)
    if name == "copy_":
      return self.copied(args[0], args[1])
    if name == "_foreach_copy_":
      for dst, src in zip(args[0], args[1], strict=True):
        self.copied(dst, src)
      return None
    if name in ("fill_", "zero_"):
      return self.filled(args[0], args[1] if name == "fill_" else 0)
    whole = ops_of.same_without_out(func)
    if whole is not None and "out" in kwargs and (name in ops_of.COPIES or name in ops_of.MOVES):
      out = kwargs.pop("out")
      with self:
        return self.copied(out, whole(*args, **kwargs))
    out = self.followed(func, name, args, kwargs, inputs)
    if out is not NotImplemented:
      return out
    if name not in ops_of.NEW and func.has_kernel_for_dispatch_key(
      torch._C.DispatchKey.CompositeImplicitAutograd
    ):
      with self:  # under inference_mode such operations arrive whole
        return func.decompose(*args, **kwargs)
    return self.computed(func, name, args, kwargs)

  def of_no_weight(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on tensors that have nothing to do with weights."""
    name = ops_of.name_of(func)
    given = list(tensors_in((args, kwargs)))
    dtype = kwargs.get("dtype") or (given[0].dtype if given else torch.get_default_dtype())
    if name in ops_of.NEW and dtype.is_floating_point:
      kwargs["device"] = torch.device("meta")  # room for weights, on whatever device
      kwargs.pop("generator", None)
    if name == "_to_copy" and given and not dtype.is_floating_point and _leaves_memory(kwargs, given[0]):
      kwargs["device"] = given[0].device  # such as the indices of a rank's experts, whose values count
    out = func(*args, **kwargs)
    outs, written = list(tensors_in((out,))), ops_of.written_by(func, args, kwargs)
    self.note_made(outs, () if name == "lift_fresh" else given)
    self.note_constants(written, name)
    if ops_of.is_random(func):
      for tensor in (t for t in (*outs, *written) if storage_of(t)):
        if tensor.device.type == "meta" or self.was_made(tensor) or self.tables.get(storage_of(tensor)):
          self.overwrite(self.tracked(tensor), name)
    elif name in ops_of.NEW or name == "scalar_tensor":
      for tensor in outs:
        self.new(func, name, args, kwargs, tensor)
    else:
      for tensor in outs:
        if tensor.device.type == "meta" and storage_of(tensor) not in {storage_of(t) for t in given}:
          self.overwrite(self.tracked(tensor), name)
    return out

  def new(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], out: torch.Tensor) -> None:
    """A new tensor of zeros, of nothing, or of a constant."""
    if out.device.type != "meta":
      return
    self.tracked(out)
    values = ops_of.bound(func, args, kwargs)
    filler = values[0] if name == "scalar_tensor" else values[1] if name.startswith("full") else 1
    if name == "new_full":
      filler = values[2]
    if name in ops_of.NEW_ZEROS or (ops_of.is_number(filler) and filler == 0):
      self.filled(out, 0)
    elif name not in ops_of.NEW_EMPTY:
      self.overwrite(out, name)

  def followed(
    self, func: Any, name: str, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor]
  ) -> Any:
    """An operation on tracked tensors that moves values or is part of a known map."""
    if name in ops_of.NEW:
      kwargs["device"] = torch.device("meta")
      out = func(*args, **kwargs)
      self.new(func, name, args, kwargs, out)
      return out
    plain = name.rstrip("_")
    op = plain if plain in ("exp", "neg") else ops_of.shift_of(func, args, kwargs)
    if op and len(inputs) == 1 and inputs[0] is args[0] and args[0].dtype in _MAPPED:
      return self.apply(args[0], None if name.endswith("_") else kwargs.get("out"), op, name)
    if name in ops_of.COPIES:
      kwargs.pop("device", None)
      out = func(self.as_meta(args[0]), *args[1:], **kwargs) if name != "_pin_memory" else args[0].clone()
      self.tracked(out)
      return self.copied(out, args[0])
    if ops_of.is_move(func, args, kwargs):
      return _moves.moved(self, func, name, args, kwargs)
    return NotImplemented

  def computed(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Any other operation: its results are opaque."""
    weights = [t for t in tensors_in((args, kwargs)) if self.store(t) is not None]
    if ops_of.answers(func) or ops_of.depends_on_values(func):
      self.reads(name, weights[0])
    stands: dict[int, torch.Tensor] = {}

    def without_memory(value: Any) -> Any:
      if not isinstance(value, torch.Tensor) or value.device.type == "meta" or value.ndim == 0:
        return value
      stand = self.as_meta(value)
      stands[id(stand)] = value
      return stand

    loading = self.name_of(weights[0])
    written = ops_of.written_by(func, args, kwargs)
    given = {storage_of(t) for t in tensors_in((args, kwargs))}
    margs, mkwargs = tree_map(without_memory, args), tree_map(without_memory, kwargs)
    try:
      out = func(*margs, **mkwargs)
    except NotImplementedError:
      self.reads(name, weights[0])
    for tensor in written:
      if self.store(tensor) is None:
        self.adopt(tensor, name, loading)
      self.overwrite(tensor, name, loading)
    out = tree_map(lambda t: stands.get(id(t), t) if isinstance(t, torch.Tensor) else t, out)
    for tensor in tensors_in((out,)):
      if storage_of(tensor) not in given:
        self.overwrite(self.tracked(tensor), name, loading)
      elif not any(tensor is t for t in written):
        self.refuse(f"'{loading}': the loader sees it through {name}, which tracing does not know")
    return out

  @staticmethod
  def as_meta(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
      return tensor
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

  # -- copies

  def copied(self, dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """dst.copy_(src)"""
    self.as_meta(dst).copy_(self.as_meta(src))  # refuses other shapes
    if self.store(dst) is None:
      self.adopt(dst, "copy_", self.name_of(src))
    if self.store(src) is None and src.device.type != "meta" and src.numel() == 1:
      return self.filled(dst, src.item())
    self.copy(dst, src)
    return dst

  def copy(self, dst: torch.Tensor, src: torch.Tensor, ops: tuple[str, ...] = ()) -> None:
    """Follows a copy between tensors whose shapes agree."""
    into, out_of = self.store(dst), self.store(src)
    if into is None or dst.numel() == 0:
      return
    if out_of is None:
      self.overwrite(dst, f"copy_ of {_NO_WEIGHT}")
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
      self.check_width(tensor)
      if tensor.dtype != self.dtype_of(tensor):
        seen = ("bits",)
    return seen if src.dtype == dst.dtype else (*seen, _casts.cast(src.dtype, dst.dtype))

  def check_width(self, tensor: torch.Tensor) -> None:
    """Raises for a tensor that sees its storage as elements of another size."""
    if tensor.dtype.itemsize != self.dtype_of(tensor).itemsize:
      raise TracingError(
        f"sees {self.dtype_of(tensor)} as {tensor.dtype}, of another width, which only tracing by "
        "numbers may follow"
      )

  def region(self, tensor: torch.Tensor, weight: int, ops: tuple[str, ...]) -> None:
    """Puts a constant where the tensor is."""
    store = self.store(tensor)
    if store is None or tensor.numel() == 0:
      return
    self.check_width(tensor)
    constant = Store(())
    constant.write(Piece((), weight, 0, ops))
    dims = [(n, s if n > 1 else 0, 0) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    _stores.copy(store, constant, dims, (int(tensor.storage_offset()), 0))

  def filled(self, tensor: torch.Tensor, value: Any) -> torch.Tensor:
    """tensor.fill_(value)"""
    if self.store(tensor) is None:
      self.adopt(tensor, "fill_", self.name_of(value) if isinstance(value, torch.Tensor) else self.loading)
    if isinstance(value, torch.Tensor) and self.store(value) is not None:
      return self.copied(tensor, value.expand(tensor.shape))
    if isinstance(value, torch.Tensor):
      value = value.item() if value.device.type != "meta" else None
    if value == 0:
      self.region(tensor, ZERO, ())
    else:
      self.overwrite(tensor, f"fill_ with {value}")
    return tensor

  def overwrite(self, tensor: torch.Tensor, op: str, loading: str = "") -> None:
    self.region(tensor, OPAQUE, (op, loading or self.loading))

  def apply(self, src: torch.Tensor, out: torch.Tensor | None, op: str, name: str) -> torch.Tensor:
    """A function of each value: into a new tensor, into `out`, or in place."""
    made = torch.empty(src.shape, dtype=src.dtype, device="meta")
    self.track(made)
    self.copy(made, src, (op,))
    if out is None and not name.endswith("_"):
      return made
    return self.copied(src if out is None else out, made)

  # -- moves that need no list of elements

  def join(self, name: str, tensors: Sequence[torch.Tensor], dim: int, out: torch.Tensor) -> None:
    dim %= max(out.ndim, 1)
    at = 0
    for tensor in tensors:
      if name == "stack":
        self.copied(out.select(dim, at), tensor)
        at += 1
      elif tensor.numel():
        self.copied(out.narrow(dim, at, tensor.shape[dim]), tensor)
        at += tensor.shape[dim]

  def repeat(self, src: torch.Tensor, repeats: Sequence[int], out: torch.Tensor) -> None:
    sizes = [1] * (out.ndim - src.ndim) + list(src.shape)
    for which in itertools.product(*(range(r) for r in repeats)):
      part = out
      for dim, (i, size) in enumerate(zip(which, sizes, strict=True)):
        part = part.narrow(dim, i * size, size)
      self.copy(part, src)

  def select(self, src: torch.Tensor, dim: int, index: torch.Tensor, out: torch.Tensor) -> None:
    size = src.shape[dim]
    for i, wanted in enumerate(index.tolist()):
      self.copy(out.narrow(dim, i, 1), src.narrow(dim, wanted % size, 1))

  def flip(self, src: torch.Tensor, dims: Sequence[int], out: torch.Tensor) -> None:
    if not dims:
      self.copy(out, src)
      return
    for i in range(src.shape[dims[0]]):
      to = src.shape[dims[0]] - 1 - i
      self.flip(src.narrow(dims[0], i, 1), dims[1:], out.narrow(dims[0], to, 1))


def _leaves_memory(kwargs: dict[str, Any], tensor: torch.Tensor) -> bool:
  device = kwargs.get("device")
  return device is not None and torch.device(device).type == "meta" and tensor.device.type != "meta"


_MAPPED = (*CONVERTIBLE, torch.float64)
