# SPDX-License-Identifier: Apache-2.0
"""Names of a LoRA adapter's tensors, in PEFT's modules and files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from reshard._errors import UnsupportedError

__all__ = ["NAMES", "Part", "adapters_in", "part_of", "whole_adapters_in"]

#: The pattern of the tensors of adapters, as `only=` takes it.
NAMES = "*.lora_*"

_ROOT = "base_model.model."
# A parameter of PEFT's modules: "X.lora_A.ADAPTER.weight", "X.lora_embedding_A.ADAPTER".
_LINEAR = re.compile(r"(?P<module>.+)\.lora_(?P<kind>[AB])(\.(?P<adapter>[^.]+))?\.weight")
_EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<kind>[AB])(\.(?P<adapter>[^.]+))?")
# What else PEFT, and Megatron-Bridge, give a module with an adapter.
_OTHERS = re.compile(r".+\.(lora_[A-Za-z_]+|adapter)(\..+)?")


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
  plain = name.removeprefix(_ROOT)
  for pattern, prefix in ((_LINEAR, ""), (_EMBEDDING, "embedding_")):
    found = pattern.fullmatch(plain)
    if found:
      return Part(found["module"], prefix + found["kind"], found["adapter"] or "default")
  if _OTHERS.fullmatch(plain):
    raise UnsupportedError(
      f"'{name}' is part of an adapter that is more than A and B (DoRA, biases, Megatron-Bridge): merge it before"
    )
  return None


def whole_adapters_in(names: Collection[str]) -> set[str]:
  """The adapters of which A, B and the weight that they change are there. Raises nothing: other names are ignored."""
  found: set[str] = set()
  for name in names:
    a = _LINEAR.fullmatch(name.removeprefix(_ROOT))
    if a and a["kind"] == "A" and f"{a['module']}.weight" in names and name.replace(".lora_A.", ".lora_B.") in names:
      found.add(a["adapter"] or "default")
  return found


def adapters_in(names: Iterable[str]) -> dict[str, dict[str, Part]]:
  """{adapter: {name: part}} of those names that are parts of adapters. Raises as part_of()."""
  found: dict[str, dict[str, Part]] = {}
  for name in names:
    part = part_of(name)
    if part is not None:
      found.setdefault(part.adapter, {})[name] = part
  return found
