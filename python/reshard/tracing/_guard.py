# SPDX-License-Identifier: Apache-2.0
"""What both tracers watch for: values that leave torch, memory outside the module, and chance.

A refusal is final, whatever the loader does with the exception.
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from reshard.tracing._operations import ESCAPES
from reshard.tracing._types import TracingError, refusal

Load = Callable[[torch.nn.Module, Iterator[tuple[str, torch.Tensor]]], Any]


def storage_of(tensor: torch.Tensor) -> int:
  """A number of the tensor's storage; 0 if it has none."""
  if tensor.layout != torch.strided:
    return 0
  return int(tensor.untyped_storage()._cdata)


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
  """The base of both tracers' modes.

  loading    the weight that the loader was given last
  refused    the first refusal
  tables     by storage: the names of the module's tensors that hold their values during a load
  constants  {name of such a tensor: the operation that wrote other values than a weight's into it}
  """

  def __init__(self) -> None:
    super().__init__()  # type: ignore[no-untyped-call]
    self.loading = ""
    self.refused: TracingError | None = None
    self.tables: dict[int, tuple[str, torch.Tensor]] = {}
    self.constants: dict[str, str] = {}
    self._made: dict[int, StorageWeakRef] = {}

  def __torch_dispatch__(
    self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
  ) -> Any:
    try:
      return self.operation(func, args, dict(kwargs or {}))
    except TracingError as error:
      if self.refused is None:
        whole = error.final or not self.loading
        self.refused = error if whole else TracingError(f"'{self.loading}': the loader {error}")
      raise self.refused from None

  def operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Does or follows an operation of torch."""
    raise NotImplementedError

  def refuse(self, text: str) -> NoReturn:
    """Raises a refusal that counts even if the loader goes on."""
    self.refused = self.refused or refusal(text)
    raise self.refused

  def reads(self, operation: str, tensor: torch.Tensor) -> NoReturn:
    self.refuse(
      f"'{self.name_of(tensor)}': the loader looks at its values ({operation}), and a layout cannot "
      "depend on them"
    )

  def name_of(self, tensor: torch.Tensor) -> str:
    """The weight whose values a tensor has."""
    raise NotImplementedError

  def follows(self, tensor: torch.Tensor) -> bool:
    """True if a tensor's values may depend on weights, or on chance."""
    raise NotImplementedError

  def note_made(self, outs: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> None:
    """Remembers memory that came to be during the load."""
    old = {storage_of(t) for t in inputs}
    for tensor in outs:
      if (storage := storage_of(tensor)) not in old:
        self._made[storage] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

  def was_made(self, tensor: torch.Tensor) -> bool:
    found = self._made.get(storage_of(tensor))
    return found is not None and not found.expired()  # type: ignore[no-untyped-call]

  def note_constants(self, written: Iterable[torch.Tensor], operation: str) -> None:
    for tensor in written:
      if found := self.tables.get(storage_of(tensor)):
        self.constants.setdefault(found[0], operation)

  def outside(self, operation: str, weight: str) -> NoReturn:
    self.refuse(
      f"'{weight}': the loader writes it ({operation}) to memory that is no parameter or "
      "buffer of the module"
    )


class _Escapes(TorchFunctionMode):
  def __init__(self, guard: Guard, names: frozenset[str]) -> None:
    super().__init__()
    self.guard, self.names = guard, names

  def __torch_function__(
    self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
  ) -> Any:
    name = getattr(func, "__name__", "")
    if name in self.names and args and isinstance(args[0], torch.Tensor):
      if self.guard.follows(args[0]):
        self.guard.reads(name, args[0])
    if name in ("__getitem__", "__setitem__") and args[0].device.type == "meta":
      args = (args[0], _with_tensors(args[1]), *args[2:])
    return func(*args, **(kwargs or {}))


def _with_tensors(index: Any) -> Any:
  """An index whose lists are tensors: torch would put their values on the meta device, too."""
  if isinstance(index, tuple):
    return tuple(map(_with_tensors, index))
  if isinstance(index, list | np.ndarray) and not any(isinstance(i, torch.Tensor) for i in index):
    with unseen():
      return torch.as_tensor(index, device="cpu")
  return index


def _numpy_state() -> tuple[bytes, int]:
  state: Any = np.random.get_state()
  return state[1].tobytes(), state[2]


@contextlib.contextmanager
def without_chance() -> Iterator[None]:
  """Raises a refusal if Python's or numpy's random numbers were drawn."""
  before = random.getstate(), _numpy_state()
  yield
  if before != (random.getstate(), _numpy_state()):
    raise refusal("the loader draws random numbers, and a layout cannot depend on them")


@contextlib.contextmanager
def unseen() -> Iterator[None]:
  """What happens in it is not the loader's doing."""
  with torch._C.DisableTorchFunction(), _disable_current_modes():
    yield


def run(
  guard: Guard,
  load: Load,
  module: torch.nn.Module,
  tensors: Iterator[tuple[str, torch.Tensor]],
  escapes: frozenset[str] = ESCAPES,
) -> None:
  """Runs a loader in a mode. Exceptions of the loader arrive whole, but for refusals, which come
  first."""
  try:
    with torch.no_grad(), without_chance(), _Escapes(guard, escapes), guard:
      load(module, tensors)
  except TracingError as error:
    guard.refused = guard.refused or error
  except Exception:
    if guard.refused is None:
      raise
  if guard.refused is not None:
    raise guard.refused from None
