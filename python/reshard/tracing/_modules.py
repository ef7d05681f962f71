# SPDX-License-Identifier: Apache-2.0
"""The parameters and persistent buffers of a module, and other storage for them."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

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


def replace_storage(module: torch.nn.Module, replace: Replace) -> None:
  """Gives every parameter and buffer other storage. Tied ones stay tied. The objects stay, with
  their class and attributes (loaders of the engine hang on them), wherever torch lets them change
  device; else they are replaced by ones of the same class and attributes."""
  made: dict[int, torch.Tensor] = {}
  kept = []  # so that no id comes again
  with torch.no_grad():
    for child in module.modules():
      for held in (child._parameters, child._buffers):
        for name, tensor in held.items():
          if tensor is None:
            continue
          if id(tensor) not in made:
            kept.append(tensor)
            made[id(tensor)] = _with_storage(tensor, replace(tensor))
          held[name] = made[id(tensor)]  # type: ignore[assignment]


def _with_storage(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
  tensor.requires_grad_(False)
  if tensor.device == data.device:
    tensor.data = data
    return tensor
  if isinstance(tensor, torch.nn.Parameter):
    new = torch.Tensor._make_subclass(type(tensor), data, False)
    new.__dict__.update(tensor.__dict__)
    return new
  return data


@contextlib.contextmanager
def built(build: Callable[[int], Any], rank: int, device: str) -> Iterator[torch.nn.Module]:
  """The module of a rank. `build` returns it, or a context manager that gives it: the state that
  the rank's modules need (process groups, say) then lasts until its load is done."""
  with torch.device(device):
    made = build(rank)
  if isinstance(made, torch.nn.Module):
    yield made
    return
  if not hasattr(made, "__enter__"):
    raise TypeError(
      f"build({rank}) returned {type(made).__name__}: it must return a torch.nn.Module, or a "
      "context manager that gives one"
    )
  with contextlib.ExitStack() as stack:
    with torch.device(device):
      module = stack.enter_context(made)
    if not isinstance(module, torch.nn.Module):
      raise TypeError(f"build({rank}) gave {type(module).__name__}, not a torch.nn.Module")
    yield module


def describe(function: Callable[..., Any]) -> str:
  """A function's file and text, for the digest of a cache."""
  try:
    return inspect.getsource(function)
  except (OSError, TypeError):
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
