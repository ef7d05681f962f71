# SPDX-License-Identifier: Apache-2.0
"""Proves the key `complete` of a card: small models of its class pass, and without one tensor they are refused."""

import json
import pathlib
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import reshard
from reshard.learn.complete import Incomplete, known_by
from reshard.learn.learner import card_text
from reshard.learn.models.variants import Variant

_MISSING = re.compile(r"tensor '([^']+)'(?: or '[^']+')? is missing from the model")
# Models of more tensors, of the sizes that a class has by default, take long and differ in numbers only.
_MOST_NAMES = 4000


def prove_complete(card: Mapping[str, Any], variants: Sequence[Variant]) -> str:
  """How many kinds of tensors are missed, of those of the class's small models, and the first that are not.

  Raises Incomplete if a model is refused as it is, or a missing tensor is called by another name.
  """
  kinds: set[str] = set()
  missed: set[str] = set()
  text = card_text(card)
  for variant, names in known_by(card, variants):
    if len(names) >= _MOST_NAMES:
      continue
    whole = _refusal(text, variant, ())
    if whole is not None and _MISSING.search(whole):
      raise Incomplete(f"a model of the class is refused: {whole}")
    for kind, name in _samples(names, kinds.copy()) if variant.plain and whole is None else ():
      kinds.add(kind)
      said = _refusal(text, variant, (name,))
      found = _MISSING.search(said or "")
      if found is not None and found[1] != name:
        raise Incomplete(f"without '{name}', another tensor is missing: {said}")
      if said is not None:  # by a rule, too: a part of a fused tensor
        missed.add(kind)
  unseen = sorted(kinds - missed)
  return f"{len(missed)} of {len(kinds)} kinds of tensors" + (f", not {', '.join(unseen[:3])}" if unseen else "")


def is_read(variant: Variant) -> bool:
  """Whether reshard reads the config itself: then it checks the tensors when it opens a model."""
  with tempfile.TemporaryDirectory() as folder:
    return reshard.open_model(_written(folder, variant, ())).config is not None


def _samples(names: Collection[str], but: Collection[str]) -> Iterator[tuple[str, str]]:
  """Of each kind of tensors but these, the last one and one in the middle."""
  kinds: dict[str, list[str]] = {}
  for name in names:
    kinds.setdefault(re.sub(r"\d+", "#", name), []).append(name)
  for kind, of in kinds.items():
    if kind in but:
      continue
    for name in dict.fromkeys((of[-1], of[len(of) // 2])):
      yield kind, name


def _refusal(card: str, variant: Variant, without: Collection[str]) -> str | None:
  """Why a card refuses a model; None if it does not."""
  with tempfile.TemporaryDirectory() as folder:
    try:
      reshard.rules_layout(card, reshard.open_model(_written(folder, variant, without)))
    except reshard.Error as error:
      return str(error)
  return None


def _written(folder: str, variant: Variant, without: Collection[str]) -> pathlib.Path:
  """Writes a model's config and the list of its tensors."""
  listed = [
    {"name": name, "dtype": "BF16", "shape": list(shape)} for name, shape in variant.names.items() if name not in without
  ]
  path = pathlib.Path(folder, "config.json")
  path.write_text(json.dumps({**variant.config, "reshard_tensors": listed}), encoding="utf-8")
  return path
