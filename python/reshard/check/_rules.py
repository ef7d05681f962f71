# SPDX-License-Identifier: Apache-2.0
"""What a check leaves out, by rule, and how it reads memory that Python cannot see."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Native", "Rules"]

# From an object that holds a library's memory, and its module: tensors that show all of that memory.
Native = Callable[[torch.nn.Module, Any], Iterable[tuple[str, torch.Tensor]]]

#: Attributes of torch.nn.Module that hold hooks and tables, or what is walked otherwise.
TORCH_ATTRIBUTES = frozenset(vars(torch.nn.Module())) - {"training"}

#: What no fresh load makes, or no kernel reads, by the rule that names it.
IGNORED_ATTRIBUTES = {
  "weight loaders": ("weight_loader", "_weight_loader", "load_weights"),
  "configs": ("config", "vllm_config", "model_config", "hf_config", "text_config", "quant_config", "cache_config"),
}
#: Types by the beginning of their module's name.
IGNORED_TYPES = {
  "configs": ("transformers.", "vllm.config", "vllm.transformers_utils", "sglang.srt.configs", "sglang.srt.server_args"),
  "process groups": ("torch.distributed", "torch._C._distributed", "vllm.distributed", "sglang.srt.distributed"),
  "logs, locks and threads": ("logging", "threading", "_thread", "concurrent."),
}
#: Others, by type.
IGNORED_CLASSES: dict[str, tuple[type, ...]] = {
  "random state": (torch.Generator,),
  "streams and events": (torch.Stream, torch.Event),
  "classes and modules": (type, types.ModuleType, types.BuiltinFunctionType),
}


@dataclass
class Rules:
  """How one engine is compared.

  attributes  names of attributes that are left out, by the rule that says why
  types       beginnings of type names ("package.module.Class") whose objects are left out, likewise
  native      by the name of a type: how to read what its objects hold
  """

  attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
  types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
  native: Mapping[str, Native] = field(default_factory=dict)

  def __post_init__(self) -> None:
    self._by_name: dict[str, str] = {}
    self._by_type: dict[str, str] = {}
    for mapping, out in ((IGNORED_ATTRIBUTES, self._by_name), (self.attributes, self._by_name),
                         (IGNORED_TYPES, self._by_type), (self.types, self._by_type)):  # fmt: skip
      for rule, names in mapping.items():
        out.update(dict.fromkeys(names, rule))

  def of_attribute(self, name: str) -> str:
    """The rule that leaves an attribute out; empty if it is compared."""
    return self._by_name.get(name, "")

  def of_value(self, value: Any) -> str:
    """The rule that leaves a value out; empty if it is compared."""
    for rule, classes in IGNORED_CLASSES.items():
      if isinstance(value, classes):
        return rule
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return next((rule for start, rule in self._by_type.items() if name.startswith(start)), "")

  def reader_of(self, value: Any) -> Native | None:
    """How to read the memory behind a value, if it is a library's."""
    return self.native.get(type(value).__name__)
