# SPDX-License-Identifier: Apache-2.0
"""Names of a LoRA adapter's tensors, in PEFT's modules and files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from reshard import _core
from reshard._errors import UnsupportedError

__all__ = ["NAMES", "Part", "adapters_in", "part_of", "whole_adapters_in"]

#: The pattern of the tensors of adapters, as `only=` takes it.
NAMES = "*.lora_*"

_ROOT = "base_model.model."

@dataclass(frozen=True)
class Part:
  """A factor of the change that an adapter makes to a module's weight."""

  module: str  # in the names of the model: "model.layers.0.self_attn.q_proj"
  kind: str  # "A" [r, in], "B" [out, r]; "embedding_A" [r, words], "embedding_B" [width, r]
  adapter: str  # "default" where a name says none, as in files

  @property
  def weight(self) -> str:
    """The name of the tensor that it changes."""
    return f"{self.module}.weight"

  @property
  def file_name(self) -> str:
    """Its name in PEFT's files, which hold one adapter each."""
    end = "" if self.kind.startswith("embedding") else ".weight"
    return f"{_ROOT}{self.module}.lora_{self.kind}{end}"


def part_of(name: str) -> Part | None:
  """The part that a tensor of this name is; None for tensors of the model itself.

  Raises UnsupportedError for other tensors of adapters: DoRA's magnitudes, biases of B, Megatron-Bridge's.
  """
  role, tensor, adapter = _core.parameter_name(name)
  if role == "other":
    raise UnsupportedError(
      f"'{name}' is part of an adapter that is more than A and B (DoRA, biases, Megatron-Bridge): merge it before"
    )
  if role in ("whole", "original"):
    return None
  return Part(tensor.removesuffix(".weight"), role, adapter or "default")


def whole_adapters_in(names: Collection[str]) -> set[str]:
  """The adapters of which A, B and the weight that they change are there. Raises nothing: other names are ignored."""
  found: set[str] = set()
  for name in names:
    role, weight, adapter = _core.parameter_name(name)
    if role == "A" and weight in names and name.replace(".lora_A.", ".lora_B.") in names:
      found.add(adapter or "default")
  return found


def adapters_in(names: Iterable[str]) -> dict[str, dict[str, Part]]:
  """{adapter: {name: part}} of those names that are parts of adapters. Raises as part_of()."""
  found: dict[str, dict[str, Part]] = {}
  for name in names:
    part = part_of(name)
    if part is not None:
      found.setdefault(part.adapter, {})[name] = part
  return found
