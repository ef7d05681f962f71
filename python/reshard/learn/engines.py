# SPDX-License-Identifier: Apache-2.0
"""What cards of inference engines say beside tensor parallelism: pipeline stages and experts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.learn.evidence import Sight, numbers_in, skeleton
from reshard.learn.fit import Seen
from reshard.learn.kinds import Rule, is_of, prefix_at, wildcards
from reshard.learn.learner import TIES, Learned, NoCard, Row, Sizes

SEEN_AT: tuple[Sizes, ...] = ({}, {"tp": 2}, {"tp": 4})
_SPREAD: Sizes = {"tp": 2, "dp": 2, "ep": 4}
_EXPERT_SIZES: tuple[Sizes, ...] = ({"tp": 2, "ep": 2}, {"tp": 2, "dp": 2}, _SPREAD)
# Sizes whose traces are proved by loading values: the other traces differ from them in sizes only.
_WITH_VALUES: tuple[Sizes, ...] = ({"tp": 2}, {"tp": 2, "ep": 2})
# Of many ranks, some: the first, the last and one between.
_RANKS_OF = {8: (0, 3, 7), 6: (0, 3, 5), 4: (0, 3)}
_LAYERS = ("num_hidden_layers", "text_config.num_hidden_layers", "n_layer", "num_layers", "n_layers",
           "llm_config.num_hidden_layers", "language_config.num_hidden_layers")  # fmt: skip


def proved_with_values(sizes: Sizes) -> bool:
  """Whether a trace at these sizes is itself proved, by loading values."""
  return sizes in _WITH_VALUES


def rows(card: Mapping[str, Any]) -> list[Row]:
  """Where a card is to predict; models 0 and 1 are those that learning saw."""
  refused = {r["that"] for r in card["require"]}
  out = [Row(model, sizes, True) for model in (0, 1) for sizes in SEEN_AT]
  # Eight ranks may not divide the heads of a small model: then the engine itself has no layout.
  out += [Row(0, {"tp": 8}, False, _RANKS_OF[8], may_fail=True), Row(2, {"tp": 2}, False)]
  if "pp == 1" not in refused:
    # An engine may refuse a stage on which a kind of layer is missing.
    out += [
      Row(1, {"pp": 3}, True), Row(0, {"pp": 3}, False, may_fail=True),
      Row(2, {"tp": 2, "pp": 3}, False, _RANKS_OF[6]),
    ]  # fmt: skip
  if "ep == 1" not in refused:
    for sizes in _EXPERT_SIZES:
      ranks = _RANKS_OF.get(sizes["tp"] * sizes.get("dp", 1))
      out.append(Row(0 if "dp" in sizes else 2, sizes, False, ranks))
  return out


def finish(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> list[dict[str, str]]:
  """Says in the rules on which stages they hold and how experts are spread; returns what must hold."""
  return [*_Stages(learned).say(), *_experts(learned, found)]


class _Stages:
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
    layers = next((name for name in _LAYERS if name in numbers), None)
    if layers is None:
      raise NoCard("no key of the config counts layers")
    self.layers = layers
    # All layers of a kind may be on one stage by chance. A name such as "model.layers.#" that counts
    # layers for one kind counts them for every kind that has it.
    self.counted: set[str] = set()
    for kind, rule in rules:
      if by_layer := self._by_layer(kind, rule):
        self.counted.update(prefix_at(kind, at) for at, several in by_layer.items() if several)
    for kind, rule in rules:
      if where := self._where(kind, rule):
        rule["where"] = [where]
    key = next((k for k in TIES if k in numbers), None)
    if key is not None:
      tied = numbers[key]
      yield {
        "that": f"pp == 1 || ({key} ?? {tied}) == {tied}",
        "says": "pp must be 1: the card was learned from models whose embeddings are "
        + ("tied" if tied else "not tied"),
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
      if all(held == {_stage(n[at], count)} for n, held in seen.items())
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


def _stage(layer: int, layers: int) -> int:
  """Of three stages, as vLLM has them. Only a guess where others do otherwise: it is predicted."""
  each = [layers // 3] * 3
  for i in range(layers % 3):
    each[1 - i] += 1
  return 0 if layer < each[0] else 1 if layer < each[0] + each[1] else 2


def _experts(
  learned: Learned, found: Mapping[str, Sequence[Seen]]
) -> Iterator[dict[str, str]]:
  """Says in rules how experts are spread, with and without expert parallelism; yields what must hold
  for that."""
  axes = learned.teacher.EXPERT_AXES
  stacked = [rule for _, rule in learned.rules if rule.get("each") or ".experts." in rule["match"]]
  if not stacked:
    yield {"that": "ep == 1", "says": "ep must be 1: the model has no experts"}
    return
  spread = learned.sight(0, _SPREAD, (0,)).ranks[0]
  for kind, rule in learned.rules:
    parts = [rule, *rule.get("with", ())]
    alone = (s for s in found[skeleton(kind)] if s.sight.model == 0 and not s.sight.sizes)
    one = next((s for s in alone if is_of(kind, s.name)), None)
    if rule in stacked:
      for part in parts:
        inner = [cut | axes | {"when": "ep == 1"} for cut in part.get("cuts", ())]
        whole = {"dim": 0, **axes, "even": True, "when": "ep > 1"}
        part["cuts"] = [*inner, whole]
    elif one and one.name in spread and spread[one.name].shape == one.ranks[0].shape:
      # Each rank has tokens of its own, and all of what is not an expert.
      for cut in (cut for part in parts for cut in part.get("cuts", ())):
        cut["when"] = "ep == 1 || dp == 1 || tp == 1"
