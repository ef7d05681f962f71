# SPDX-License-Identifier: Apache-2.0
"""Names of tensors in published checkpoints, where transformers writes others."""

import pathlib
import re

import torch
from safetensors.torch import load_file, save_file
from transformers.conversion_mapping import get_checkpoint_conversion_mapping


def publish(model: torch.nn.Module, folder: pathlib.Path) -> None:
  """Renames the tensors of a checkpoint that transformers wrote as published ones call them.

  A tower of CLIP or SigLIP has a prefix of its own there ("vision_model."). transformers removes it when it
  loads the tower alone or in another model, and puts it back when it saves the tower alone.
  """
  prefixes = _prefixes(model)
  if not prefixes:
    return
  for path in folder.glob("*.safetensors"):
    tensors = load_file(path)
    save_file({_renamed(name, prefixes): t for name, t in tensors.items()}, path, metadata={"format": "pt"})


def _prefixes(model: torch.nn.Module) -> dict[str, str]:
  """{the attribute of a nested tower: the prefix of its published names}."""
  found = {}
  for path, module in model.named_modules():
    for change in get_checkpoint_conversion_mapping(type(module).__name__) or () if path else ():
      prefix = getattr(change, "prefix_to_remove", None)
      if prefix:
        found[path.rpartition(".")[2]] = prefix
  return found


def _renamed(name: str, prefixes: dict[str, str]) -> str:
  for attribute, prefix in prefixes.items():
    at = rf"((?:^|\.){re.escape(attribute)}\.)(?!{re.escape(prefix)}\.)"
    name = re.sub(at, rf"\g<1>{prefix}.", name, count=1)
  return name
