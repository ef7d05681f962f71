# SPDX-License-Identifier: Apache-2.0
"""The parameters and persistent buffers of a module, and other storage for them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from reshard.tracing._operations import tensors_in

# Makes the storage that replaces a tensor's.
Replace = Callable[[torch.Tensor], torch.Tensor]


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
  """Parameters and buffers by name, each tensor once, under its first name. Non-persistent buffers
  too: a loader may write one."""
  named: dict[str, torch.Tensor] = dict(module.named_parameters())
  named.update(module.named_buffers())
  return named


def persistent(module: torch.nn.Module) -> set[str]:
  """The names of what a state_dict would hold."""
  names = {name for name, _ in module.named_parameters()}
  for prefix, child in module.named_modules():
    dot = prefix + "." if prefix else ""
    gone = child._non_persistent_buffers_set
    names |= {dot + name for name in child._buffers if name not in gone}
  return names


def wanted_names(module: torch.nn.Module, weights: set[str]) -> set[str]:
  """The names of what holds no values during a load: all parameters, and those persistent buffers
  that hold floating-point numbers or have a weight's name. Others are tables, which loaders read;
  what they write into these is seen all the same."""
  kept = persistent(module)
  names = {name for name, _ in module.named_parameters()}
  for name, buffer in module.named_buffers():
    if name in kept and (buffer.is_floating_point() or name in weights):
      names.add(name)
  return names


def replace_storage(module: torch.nn.Module, replace: Replace, names: set[str]) -> None:
  """Gives the named parameters and buffers other storage. Tied ones stay tied. The objects stay,
  with their class and attributes (loaders of the engine hang on them), wherever torch lets them
  change device; else they are replaced by ones of the same class and attributes."""
  made: dict[int, torch.Tensor] = {}
  kept = []  # so that no id comes again
  for name in names:
    tensor = _at(module, name)
    if tensor is not None:
      kept.append(tensor)
      made[id(tensor)] = _with_storage(tensor, replace(tensor))
  for child in module.modules():
    for held in (child._parameters, child._buffers):
      for name, tensor in held.items():
        if tensor is not None and id(tensor) in made:
          held[name] = made[id(tensor)]  # type: ignore[assignment]


def give_copies(module: torch.nn.Module, names: set[str], device: str = "cpu") -> None:
  """Gives tensors storage with the same values: a load may then write them."""
  replace_storage(module, lambda t: t.detach().to(device, copy=True), names)


@contextlib.contextmanager
def borrowed(module: torch.nn.Module) -> Iterator[None]:
  """Afterwards the module is what it was: its tensors, their storage and its attributes."""
  tensors = []
  for tensor in {id(t): t for m in module.modules() for t in _held_by(m)}.values():
    if not is_lazy(tensor):
      tensors.append((tensor, tensor.data, tensor.requires_grad))
  kept = [
    (m, dict(vars(m)), [(d, dict(d)) for d in (m._parameters, m._buffers, m._modules)])
    for m in module.modules()
  ]
  try:
    yield
  finally:
    for child, attributes, dicts in kept:
      vars(child).clear()
      vars(child).update(attributes)
      for held, before in dicts:
        held.clear()
        held.update(before)  # type: ignore[arg-type]
    for tensor, data, requires_grad in tensors:
      if tensor.device == data.device and tensor.data_ptr() != data.data_ptr():
        tensor.data = data
      if tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)


def _held_by(module: torch.nn.Module) -> Iterator[torch.Tensor]:
  for held in (module._parameters, module._buffers):
    yield from (tensor for tensor in held.values() if tensor is not None)


def attribute_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
  """Tensors that modules keep as plain attributes, alone or in lists, tuples and dicts."""
  for prefix, child in module.named_modules():
    for name, value in vars(child).items():
      if name not in ("_parameters", "_buffers", "_modules"):
        for tensor in tensors_in(value):
          yield f"{prefix}.{name}" if prefix else name, tensor


def _at(module: torch.nn.Module, name: str) -> torch.Tensor | None:
  path, _, last = name.rpartition(".")
  tensor = getattr(module.get_submodule(path), last)
  return tensor if isinstance(tensor, torch.Tensor) else None


def _with_storage(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
  tensor.requires_grad_(False)
  if tensor.device == data.device:
    tensor.data = data
    return tensor
  if isinstance(tensor, torch.nn.Parameter):
    new = torch.Tensor._make_subclass(type(tensor), data, False)
    attributes: Any = new.__dict__
    attributes.update(tensor.__dict__)
    return new
  return data


_SHAPED = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.empty_strided)


class _FloatsOnMeta(TorchFunctionMode):
  """New tensors of floating-point numbers of a given shape are on the meta device. Others are not:
  a module may compute with indices while it is built."""

  def __torch_function__(
    self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
  ) -> Any:
    kwargs = dict(kwargs or {})
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if func in _SHAPED and kwargs.get("device") is None and dtype.is_floating_point:
      kwargs["device"] = "meta"
    return func(*args, **kwargs)


@contextlib.contextmanager
def built(build: Callable[[int], Any], rank: int, device: str) -> Iterator[torch.nn.Module]:
  """The module of a rank, which afterwards is what it was. `build` returns it, or a context manager
  that gives it: the state that the rank's modules need (process groups, say) then lasts until its
  load is done."""
  context = _FloatsOnMeta() if device == "meta" else torch.device(device)
  with context:
    made = build(rank)
  if isinstance(made, torch.nn.Module):
    with borrowed(made):
      yield made
    return
  if not hasattr(made, "__enter__"):
    raise TypeError(
      f"build({rank}) returned {type(made).__name__}: it must return a torch.nn.Module, or a "
      "context manager that gives one"
    )
  with contextlib.ExitStack() as stack:
    with context:
      module = stack.enter_context(made)
    if not isinstance(module, torch.nn.Module):
      raise TypeError(f"build({rank}) gave {type(module).__name__}, not a torch.nn.Module")
    with borrowed(module):
      yield module
