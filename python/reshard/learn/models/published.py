# SPDX-License-Identifier: Apache-2.0
"""Names of tensors in published checkpoints, where transformers writes others."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.conversion_mapping import get_checkpoint_conversion_mapping


# What published checkpoints call the parts of CLIP and SigLIP.
_PARTS = ("vision_model", "text_model")


def publish(model: torch.nn.Module, folder: pathlib.Path) -> None:
  """Renames the tensors of a checkpoint that transformers wrote as published ones call them.

  A tower of CLIP or SigLIP has a prefix of its own there ("vision_model."). transformers removes it when it
  loads the tower alone or in another model, and puts it back when it saves the tower alone.
  """
  prefixes = prefixes_of(model)
  if not prefixes:
    return
  for path in folder.glob("*.safetensors"):
    tensors = load_file(path)
    save_file({renamed(name, prefixes): t for name, t in tensors.items()}, path, metadata={"format": "pt"})


def with_both_names(given: Sequence[dict[str, Any]], prefixes: Mapping[str, str]) -> list[dict[str, Any]]:
  """Rules for published checkpoints, and those that also take what transformers wrote. `prefixes`: as prefixes_of()."""
  rules: list[dict[str, Any]] = []
  for rule in given:
    rules.append(rule)
    other = _as_written(rule, prefixes)
    if other != rule:
      rules.append({"name": _filled(rule["match"])} | other)
  return rules


def _as_written(rule: Mapping[str, Any], prefixes: Mapping[str, str]) -> dict[str, Any]:
  """A rule, or a part of one, with the names that transformers writes."""
  match = rule["match"]
  for attribute, prefix in prefixes.items():
    match = re.sub(rf"((?:^|\.){re.escape(attribute)}\.){re.escape(prefix)}\.", r"\g<1>", match, count=1)
  parts = {"with": [_as_written(part, prefixes) for part in rule["with"]]} if "with" in rule else {}
  return {**rule, "match": match, **parts}


def _filled(match: str) -> str:
  """The name that a rule without one gives: "$1" for its first wildcard, and so on."""
  count = 0

  def numbered(_: re.Match[str]) -> str:
    nonlocal count
    count += 1
    return f"${count}"

  return re.sub(r"[*#]", numbered, match)


def prefixes_of(model: torch.nn.Module) -> dict[str, str]:
  """{the attribute of a nested tower: the prefix of its published names}."""
  found = {}
  for path, module in model.named_modules():
    for change in get_checkpoint_conversion_mapping(type(module).__name__) or () if path else ():
      prefix = getattr(change, "prefix_to_remove", None)
      if prefix in _PARTS:
        found[path.rpartition(".")[2]] = prefix
  return found


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
  """A tensor's name in published checkpoints. `prefixes`: as prefixes_of()."""
  for attribute, prefix in prefixes.items():
    at = rf"((?:^|\.){re.escape(attribute)}\.)(?!{re.escape(prefix)}\.)"
    name = re.sub(at, rf"\g<1>{prefix}.", name, count=1)
  return name
