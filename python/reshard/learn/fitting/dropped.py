# SPDX-License-Identifier: Apache-2.0
"""Tensors that a framework leaves out: all of a kind, or those of the last layers of a tower, which end with the layer
whose output the model takes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.learn.fitting.evidence import Sight, Unfit, numbers_in, skeleton
from reshard.learn.fitting.kinds import Rule

#: Keys of configs that choose a tower's layer: from its last one, if they are negative.
_CHOOSES = "feature_layer"
_DEPTHS = ("num_hidden_layers", "depth")


def omissions(sights: Sequence[Sight]) -> tuple[list[Rule], list[dict[str, Any]]]:
  """The rules that leave tensors out, and what must hold for that. Those with `from` come before all others.

  sights  those with all ranks; of each model one at least

  Raises Unfit.
  """
  names = sorted({skeleton(name) for of in sights for name in of.omitted})
  rules: list[Rule] = []
  choosing: dict[str, str] = {}  # by the first component of a tower's names
  for name in names:
    counts = [_layers_held(name, of) for of in sights]
    if not any(counts):
      rules.append({"match": name, "omit": True})
      continue
    depth, choice = _said(counts, sights)
    choosing[name.partition(".")[0]] = choice
    rules.append({"match": name, "from": f"{depth} + {choice} + 1", "omit": True})
  for rule in rules:
    choice = choosing.get(rule["match"].partition(".")[0], "")
    if choice and "from" not in rule:  # not seen where the tower is whole
      rule["when"] = f"{choice} + 1 < 0"
  require = [
    {"that": f"{choice} < 0", "says": f"{choice} must be negative: the card was learned from models that count it from the last layer"}
    for choice in sorted(set(choosing.values()))
  ]  # fmt: skip
  return rules, require


def _layers_held(name: str, of: Sight) -> int:
  """How many layers a tower keeps, by a kind of tensors that it leaves out of the others; 0: it has none of the kind."""
  left = sorted(numbers_in(n) for n in of.omitted if skeleton(n) == name)
  every = sorted(numbers_in(n) for n in of.shapes if skeleton(n) == name)
  if left == every:
    return 0
  if "#" not in name or left != [n for n in every if left and n[0] >= left[0][0]]:
    raise Unfit(f"'{name}' is left out of some layers, and no rule says of which")
  return left[0][0]


def _said(counts: Sequence[int], sights: Sequence[Sight]) -> tuple[str, str]:
  """The keys of a tower's depth and of the layer that is chosen. The latter has no default: a list of layers is none."""
  for depth, choice in _pairs(sights[0].numbers):
    numbers = [(of.numbers.get(depth, 0), of.numbers.get(choice, 0)) for of in sights]
    if all(c < 0 and n + c + 1 == held for (n, c), held in zip(numbers, counts, strict=True)):
      return depth, choice
  raise Unfit(f"no expression of the config gives {', '.join(map(str, counts))} layers")


def _pairs(numbers: Mapping[str, int]) -> Iterator[tuple[str, str]]:
  for choice in numbers:
    for depth in numbers:
      if _CHOOSES in choice and depth.rpartition(".")[2] in _DEPTHS and depth.startswith("vision"):
        yield depth, choice
