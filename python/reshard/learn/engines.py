# SPDX-License-Identifier: Apache-2.0
"""What cards of inference engines say beside tensor parallelism: pipeline stages."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from reshard.learn.fitting.evidence import Sight, numbers_in
from reshard.learn.fitting.kinds import Rule, is_of, prefix_at, wildcards
from reshard.learn.learner import TIED, TIES, Learned, NoCard, Row, Sizes

SEEN_AT: tuple[Sizes, ...] = ({}, {"tp": 2}, {"tp": 4})
# Sizes whose traces are proved by loading values: the other traces differ from them in sizes only.
_WITH_VALUES: tuple[Sizes, ...] = ({"tp": 2}, {"tp": 2, "ep": 2})
#: Of many ranks, some: the first, the last and one between.
RANKS_OF = {8: (0, 3, 7), 6: (0, 3, 5), 4: (0, 3)}
LAYERS = ("num_hidden_layers", "text_config.num_hidden_layers", "n_layer", "num_layers", "n_layers",
           "llm_config.num_hidden_layers", "language_config.num_hidden_layers")  # fmt: skip


def proved_with_values(sizes: Sizes) -> bool:
  """Whether a trace at these sizes is itself proved, by loading values."""
  return sizes in _WITH_VALUES


def rows(refused: Collection[str]) -> list[Row]:
  """Where a card is to predict, without experts; models 0 and 1 are those that learning saw.

  refused   the conditions that the card states
  """
  out = [Row(model, sizes, True) for model in (0, 1) for sizes in SEEN_AT]
  # Eight ranks may not divide the heads of a small model: then the engine itself has no layout.
  out += [Row(0, {"tp": 8}, False, RANKS_OF[8], may_fail=True), Row(2, {"tp": 2}, False)]
  if "pp == 1" not in refused:
    # An engine may refuse a stage on which a kind of layer is missing.
    out += [
      Row(1, {"pp": 3}, True), Row(0, {"pp": 3}, False, may_fail=True),
      Row(2, {"tp": 2, "pp": 3}, False, RANKS_OF[6]),
    ]  # fmt: skip
  return out


def expert_rules(learned: Learned) -> list[Rule]:
  """The rules of local tensors that hold several experts along their first dimension."""
  return [
    rule
    for _, rule in learned.rules
    if rule.get("each") or (".experts." in rule["match"] and ".experts.#." not in rule["match"])
  ]


#: Keys that place experts on ranks, and order what an expert's tensor holds.
_PLACES = [{"name": "redundant", "default": 0}, {"name": "expert_map", "file": True}]
_ORDERS = [{"name": "w13", "words": ["gate_first", "up_first"]}, {"name": "transposed", "words": ["0", "1"]}]


def place_experts(rules: Sequence[Rule], *more: Rule) -> list[Rule]:
  """Has rules of experts follow the keys that place them, which it returns with `more` keys."""
  for rule in rules:
    for part in parts_of(rule):
      if not part.get("each"):
        part["experts"] = True
    if rule.get("name", "").endswith(("w13_weight", "w2_weight")):
      rule["swap"] = {"dims": [1, 2], "when": "transposed"}
    if rule.get("name", "").endswith("w13_weight") and rule.get("with"):
      rule["reverse"] = "w13.up_first"
  return [*_PLACES, *more, *_ORDERS] if rules else []


def parts_of(rule: Rule) -> list[Rule]:
  return [rule, *rule.get("with", ())]


def keep_towers_whole(learned: Learned) -> None:
  """Has rules of a tower cut it only where ranks divide its heads, if the engine was seen to hold it whole elsewhere."""
  heads = next((k for k in learned.terms.names() if k.startswith("vision") and k.endswith(("num_attention_heads", "num_heads"))), None)
  if heads is None:
    return
  try:
    eight = learned.sight(0, {"tp": 8}, (0,))
  except NoCard:
    return  # the engine itself refuses it
  whole = learned.sight(0, {}, (0,)).ranks[0]
  if eight.numbers[heads] % 8 == 0:
    return
  for kind, rule in learned.rules:
    held = {name: local.shape for name, local in eight.ranks[0].items() if is_of(kind, name)}
    cuts = [cut for part in parts_of(rule) for cut in part.get("cuts", ())]
    if held and cuts and all(shape == whole[name].shape for name, shape in held.items()):
      for cut in cuts:
        cut["when"] = f"{learned.terms.text_of(heads)} % tp == 0"


class Stages:
  """Pipeline stages, seen at pp=3."""

  def __init__(self, learned: Learned) -> None:
    self.learned = learned

  def say(self) -> Iterator[dict[str, str]]:
    """Says in rules on which stages they hold; yields what must hold for that."""
    teacher, rules = self.learned.teacher, self.learned.rules
    try:
      self.three: Sight = teacher.sight(self.learned.folders[1], {"pp": 3}, 1)
    except Exception as error:
      said = " ".join(str(error).split())[:160] or type(error).__name__
      yield {"that": "pp == 1", "says": f"pp must be 1: {said}"}
      return
    numbers = self.three.numbers
    layers = next((name for name in LAYERS if name in numbers), None)
    if layers is None:
      raise NoCard("no key of the config counts layers")
    self.layers = layers
    # All layers of a kind may be on one stage by chance. A name such as "model.layers.#" that counts
    # layers for one kind counts them for every kind that has it.
    self.counted: set[str] = set()
    for kind, rule in rules:
      if by_layer := self._by_layer(kind, rule):
        self.counted.update(prefix_at(kind, at) for at, several in by_layer.items() if several)
    if not self.counted:
      yield {"that": "pp == 1", "says": "pp must be 1: the class has no stages"}
      return
    for kind, rule in rules:
      if where := self._where(kind, rule):
        rule["where"] = [where]
    key = next((k for k in TIES if k in numbers), None)
    if key is not None:
      tied = numbers[key]
      yield {
        "that": f"pp == 1 || ({key} ?? {tied}) == {tied}",
        "says": f"pp must be 1: {TIED}" + ("tied" if tied else "not tied"),
      }

  def _of(self, kind: str) -> dict[tuple[int, ...], set[int]]:
    """By the numbers in the names of a kind's tensors: the stages that hold them."""
    seen: dict[tuple[int, ...], set[int]] = {}
    for stage, held in self.three.ranks.items():
      for name in held:
        if is_of(kind, name):
          seen.setdefault(numbers_in(name), set()).add(stage)
    return seen

  def _by_layer(self, kind: str, rule: Rule) -> dict[int, bool]:
    """The numbers of a kind's names that may count layers: each tensor is on the stage of this one.
    True if the kind is on several stages."""
    seen, count = self._of(kind), self.three.numbers[self.layers]
    several = len(set(map(frozenset, seen.values()))) > 1
    return {
      at: several
      for at in wildcards(rule)
      if all(held == {self._stage(n[at], count)} for n, held in seen.items())
    }

  def _where(self, kind: str, rule: Rule) -> dict[str, Any] | None:
    seen = self._of(kind)
    stages = set(map(frozenset, seen.values()))
    if not seen:
      raise NoCard(f"'{kind}' is on no stage at pp=3")
    if stages == {frozenset({0, 1, 2})}:
      return None
    by_layer = self._by_layer(kind, rule)
    for k, at in enumerate(wildcards(rule)):
      if at in by_layer and prefix_at(kind, at) in self.counted:
        of = self.learned.terms.text_of(self.layers)
        return {"axis": "pp", "number": k + 1, "of": of, **self.learned.teacher.STAGES}
    if any(prefix_at(kind, at) in self.counted for at in range(kind.count("."))):
      raise NoCard(f"'{kind}' is in layers, but not on their stages")
    known: dict[frozenset[int], dict[str, Any]] = {
      frozenset({0}): {"at": 0},
      frozenset({2}): {"at": -1},
      frozenset({0, 2}): {"at": 0, "or_last": True},
    }
    if len(stages) > 1 or (only := stages.pop()) not in known:
      raise NoCard(f"'{kind}' is on stages that no rule says")
    return {"axis": "pp", **known[only]}

  def _stage(self, layer: int, layers: int) -> int:
    """Of three stages. Only a guess where a class does otherwise: it is predicted."""
    each, rest = layers // 3, layers % 3
    more = (2, 1) if self.learned.teacher.STAGES["rest"] == "last" else (1, 0)
    sizes = [each + (stage in more[:rest]) for stage in range(3)]
    return 0 if layer < sizes[0] else 1 if layer < sizes[0] + sizes[1] else 2
