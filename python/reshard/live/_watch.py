# SPDX-License-Identifier: Apache-2.0
"""The tensors of Megatron-Core modules, read once and then watched: a call that changes nothing walks no module."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from reshard import _core
from reshard._errors import Error
from reshard._gpus import why_not
from reshard.live._modules import chunks_of, is_quantised, module_tensors, persistent_buffers


class Watch:
  """The chunks of a rank's pipeline stage, and what they hold. Keeps no root module alive.

  version  rises whenever look() has read them anew
  tensors  module_tensors() of them
  buffers  of each persistent buffer: its name in `tensors`, the dict of its module that has it, and its name there
  plain    whether a session can use all tensors: of the host, or of one GPU, none quantised
  """

  def __init__(self, modules: Sequence[torch.nn.Module], gone: Callable[[Any], Any]) -> None:
    """`gone` is called when the first of the modules is no more."""
    self._roots = [weakref.ref(module, gone) for module in modules]
    self.version = 0
    self._read()

  @property
  def roots(self) -> list[torch.nn.Module | None]:
    return [root() for root in self._roots]

  def look(self) -> None:
    """Reads the modules anew if a module, parameter or buffer was registered, replaced or removed, or has other
    memory, another shape or another dtype."""
    if not self._is_as_read():
      self._read()

  def _read(self) -> None:
    self.version += 1
    roots = self.roots
    chunks = chunks_of(roots)
    self._parts = _parts(roots)
    inside = [module for chunk in chunks for module in chunk.module.modules()]
    self._dicts = [of for module in inside for of in (module._modules, module._parameters, module._buffers)]
    self._counts = list(map(len, self._dicts))
    self._filled = [of for of in self._dicts if of]
    # Kept, so that nothing new can have their identity.
    self._values = list(itertools.chain.from_iterable(map(dict.values, self._filled)))
    self._held = [value for value in self._values if isinstance(value, torch.Tensor)]
    self.plain = not any(map(is_quantised, self._held))
    self._facts = _facts(self._held) if self.plain else None
    self.tensors = module_tensors(roots)
    self.buffers = [
      (chunk.front + name, module._buffers, key)
      for chunk in chunks
      for name, module, key in persistent_buffers(chunk.module)
    ]
    self.devices = {tensor.device for tensor in self.tensors.values() if tensor.numel() > 0}
    self.plain = self.plain and len(self.devices) <= 1 and not any(map(why_not, self.devices))

  def _is_as_read(self) -> bool:
    if self._facts is None or list(map(len, self._dicts)) != self._counts or self._parts != _parts(self.roots):
      return False
    now = itertools.chain.from_iterable(map(dict.values, self._filled))
    try:
      return all(map(operator.is_, now, self._values)) and self._facts.same(self._held)
    except Error:  # memory that has gone, say: whoever uses it says so
      return False


def _parts(roots: Sequence[Any]) -> list[Any]:
  """What decides which modules are looked at: wrapped modules, and the parts that a model names itself."""
  found: list[Any] = []
  for root in roots:
    module = root
    while isinstance(getattr(module, "module", None), torch.nn.Module):
      module = module.module
      found.append(id(module))
    parts = getattr(module, "refit_modules", None)
    if parts is not None:
      found += [(label, id(part), id(groups)) for label, part, groups in parts()]
  return found


def _facts(tensors: list[torch.Tensor]) -> _core.TensorFacts | None:
  """None for tensors that are not plain memory."""
  try:
    return _core.TensorFacts(tensors)
  except Error:
    return None


_watches: dict[tuple[int, ...], Watch] = {}


def seen(modules: Sequence[Any]) -> Watch:
  """The watch of these modules as they were when watched() last looked at them. @pre it has"""
  return _watches[tuple(map(id, modules))]


def watched(modules: Sequence[Any]) -> Watch:
  """The watch of these modules as they are now; made by the first call, and kept while they live."""
  key = tuple(map(id, modules))
  watch = _watches.get(key)
  if watch is not None and all(map(operator.is_, watch.roots, modules)):
    watch.look()
    return watch
  watch = _watches[key] = Watch(modules, lambda _: _watches.pop(key, None))
  return watch
