# SPDX-License-Identifier: Apache-2.0
"""Layout cards: learned from a framework's own classes and loaders, accepted only if they predict.

    card = learn(teacher, folders, unseen)     # folders: checkpoints of small models of one class

A card is a rules file (docs/cards.md) for one class of one framework. It is fitted to what ranks
hold at tp 1, 2 and 4 in two models of different sizes, and then has to predict other parallel sizes
and a model that it never saw: every tensor of the ranks, by name, shape, dtype and element.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import reshard
from reshard.learn.evidence import Sight, Unfit, numbers_in, skeleton
from reshard.learn.fit import Kind, Seen, kinds
from reshard.learn.terms import Terms

__all__ = ["NoCard", "card_text", "learn", "prove"]

Sizes = Mapping[str, int]
Rule = dict[str, Any]

_SEEN_AT: tuple[Sizes, ...] = ({}, {"tp": 2}, {"tp": 4})
_SPREAD: Sizes = {"tp": 2, "dp": 2, "ep": 4}
_EXPERT_SIZES: tuple[Sizes, ...] = ({"tp": 2, "ep": 2}, {"tp": 2, "dp": 2}, _SPREAD)
# Traces that are proved with values, too: the others differ from them in sizes only.
_WITH_VALUES: tuple[Sizes, ...] = ({"tp": 2}, {"tp": 2, "ep": 2})
# Of many ranks, some: the first, the last and one between.
_RANKS_OF = {8: (0, 3, 7), 6: (0, 3, 5), 4: (0, 3)}
_LAYERS = ("num_hidden_layers", "text_config.num_hidden_layers", "n_layer", "num_layers", "n_layers",
           "llm_config.num_hidden_layers", "language_config.num_hidden_layers")  # fmt: skip
_TIES = ("tie_word_embeddings", "text_config.tie_word_embeddings")


class NoCard(reshard.UnsupportedError):
  """No card says what the framework does. One line."""


def learn(teacher: Any, folders: Sequence[pathlib.Path], unseen: pathlib.Path) -> dict[str, Any]:
  """The card of the class of small checkpoints, proved.

  teacher   a module such as reshard.learn.vllm
  folders   two checkpoints of other sizes, to learn from
  unseen    a third one, to prove the card on

  Raises NoCard, with the reason.
  """
  card = _Learner(teacher, folders).card()
  card["card"]["proof"] = "; ".join(prove(teacher, card, folders, unseen))
  return card


def card_text(card: Mapping[str, Any]) -> str:
  """The card as its file has it: one rule per line."""
  head = {key: value for key, value in card.items() if key != "rules"}
  lines = ",\n".join("  " + json.dumps(rule) for rule in card["rules"])
  return json.dumps(head)[:-1] + ',\n"rules": [\n' + lines + "\n]}\n"


def prove(
  teacher: Any, card: Mapping[str, Any], folders: Sequence[pathlib.Path], unseen: pathlib.Path
) -> list[str]:
  """Has a card predict what ranks hold: where learning looked, and where it did not.

  Returns the sizes; raises NoCard for one that it predicts otherwise.
  """
  first, second = folders
  refused = {r["that"] for r in card["require"]}
  rows = [(folder, sizes, True) for folder in folders for sizes in _SEEN_AT]
  rows += [(first, {"tp": 8}, False), (unseen, {"tp": 2}, False)]
  if "pp == 1" not in refused:
    rows += [(second, {"pp": 3}, True), (first, {"pp": 3}, False), (unseen, {"tp": 2, "pp": 3}, False)]
  if "ep == 1" not in refused:
    rows += [(first if "dp" in sizes else unseen, sizes, False) for sizes in _EXPERT_SIZES]
  proved = []
  for folder, sizes, seen in rows:
    if _predicts(teacher, card, folder, sizes, seen):
      proved.append(_named(sizes) + ("" if seen else " (unseen)"))
  return list(dict.fromkeys(proved))


def _predicts(
  teacher: Any, card: Mapping[str, Any], folder: pathlib.Path, sizes: Sizes, seen: bool
) -> bool:
  """False if the framework itself has no such layout: heads that eight ranks do not divide."""
  world = sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("dp", 1)
  ranks = None if seen else _RANKS_OF.get(world)
  try:
    theirs = teacher.layout_of(folder, sizes, sizes in _WITH_VALUES, ranks)
  except Exception as error:
    if sizes.get("tp", 1) > 4:
      return False
    raise NoCard(_reason(sizes, error)) from error
  keys: dict[str, Any] = dict(sizes)
  try:
    ours = reshard.rules_layout(card_text(card), reshard.open_model(folder), **keys)
  except reshard.Error as error:
    raise NoCard(f"{_named(sizes)}: the card is refused: {error}") from None
  traced = set(theirs.ranks)
  for one in reshard.diff(theirs, ours):
    if ranks is None or traced & set(one.ranks):
      raise NoCard(f"{_named(sizes)}: predicts other than the framework holds: {one}")
  return True


class _Learner:
  def __init__(self, teacher: Any, folders: Sequence[pathlib.Path]) -> None:
    self.teacher, self.folders = teacher, list(folders)
    self.config = json.loads((self.folders[0] / "config.json").read_text())

  def card(self) -> dict[str, Any]:
    models = list(enumerate(self.folders))
    sights = [self._sight(f, sizes, i) for i, f in models for sizes in _SEEN_AT]
    numbers = [s.numbers for s in sights if not s.sizes]
    self.terms = Terms(numbers, self.teacher.defaults_of(self.config["model_type"]))
    found = {
      name: seen
      for name, seen in kinds(sights).items()
      if any(held.pieces for one in seen for held in one.ranks.values())
    }
    rules = [(kind, rule) for name, seen in found.items() for kind, rule in self._rules(name, seen)]
    require = [*self.teacher.REQUIRE, *self._stages(rules), *self._experts(rules, found)]
    self._heads(rules, sights[0])
    omitted = sorted({skeleton(name) for sight in sights for name in sight.omitted})
    return {
      "card": {
        "framework": self.teacher.FRAMEWORK,
        "release": self.teacher.RELEASE,
        "architectures": self.config["architectures"],
        "model_types": [self.config["model_type"]],
        "proof": "not proved",
      },
      "axes": self.teacher.AXES,
      "keys": self.teacher.KEYS,
      "require": require,
      "dtype": "config",
      "rules": [*(rule for _, rule in rules), *({"match": n, "omit": True} for n in omitted)],
    }

  def _sight(
    self, folder: pathlib.Path, sizes: Sizes, model: int, ranks: Sequence[int] | None = None
  ) -> Sight:
    try:
      found: Sight = self.teacher.sight(folder, sizes, model, sizes in _WITH_VALUES, ranks)
    except Unfit as error:
      raise NoCard(str(error)) from None
    except Exception as error:
      raise NoCard(_reason(sizes, error)) from error
    return found

  # Rules, kind by kind. Those whose local tensors are not alike are split by a number that does not
  # count layers: it takes the same values in models of any depth.

  def _rules(self, name: str, seen: Sequence[Seen]) -> list[tuple[str, Rule]]:
    try:
      return [(name, Kind(name, seen, self.terms).rule())]
    except Unfit as error:
      for groups in _splits(name, seen):
        try:
          return [rule for n, some in groups for rule in self._rules(n, some)]
        except NoCard:
          continue
      raise NoCard(f"'{name}': {error}") from None

  # Pipeline stages.

  def _stages(self, rules: Sequence[tuple[str, Rule]]) -> Iterator[dict[str, str]]:
    """Says in rules on which stages they hold; yields what must hold for that."""
    try:
      three = self.teacher.sight(self.folders[1], {"pp": 3}, 1, False)
    except Exception as error:
      said = " ".join(str(error).split())[:160] or type(error).__name__
      yield {"that": "pp == 1", "says": f"pp must be 1: {said}"}
      return
    layers = next((name for name in _LAYERS if name in three.numbers), None)
    if layers is None:
      raise NoCard("no key of the config counts layers")
    # A stage that has all layers of a kind may have them by chance: what counts layers for one kind,
    # such as "model.layers.#", counts them for all.
    counted: set[str] = set()
    for kind, rule in rules:
      if by_layer := self._by_layer(kind, rule, three, layers):
        counted.update(_prefix(kind, at) for at, several in by_layer.items() if several)
    for kind, rule in rules:
      if where := self._where(kind, rule, three, layers, counted):
        rule["where"] = [where]
    key = next((k for k in _TIES if k in three.numbers), None)
    if key is not None:
      tied = three.numbers[key]
      yield {
        "that": f"pp == 1 || ({key} ?? {tied}) == {tied}",
        "says": "pp must be 1: the card was learned from models whose embeddings are "
        + ("tied" if tied else "not tied"),
      }

  @staticmethod
  def _by_layer(kind: str, rule: Rule, three: Sight, layers: str) -> dict[int, bool]:
    """The numbers of a kind's names that may count layers: each tensor is on the stage of this one.
    True if the kind is on several stages."""
    seen, count = _stages_of(kind, three), three.numbers[layers]
    several = len(set(map(frozenset, seen.values()))) > 1
    return {
      at: several
      for at in _wildcards(rule)
      if all(held == {_stage(n[at], count)} for n, held in seen.items())
    }

  def _where(
    self, kind: str, rule: Rule, three: Sight, layers: str, counted: set[str]
  ) -> dict[str, Any] | None:
    seen = _stages_of(kind, three)
    stages = set(map(frozenset, seen.values()))
    if not seen:
      raise NoCard(f"'{kind}' is on no stage at pp=3")
    if stages == {frozenset({0, 1, 2})}:
      return None
    by_layer = self._by_layer(kind, rule, three, layers)
    for k, at in enumerate(_wildcards(rule)):
      if at in by_layer and _prefix(kind, at) in counted:
        of = self.terms.text_of(layers)
        return {"axis": "pp", "number": k + 1, "of": of, **self.teacher.STAGES}
    if any(_prefix(kind, at) in counted for at in range(kind.count("."))):
      raise NoCard(f"'{kind}' is in layers, but not on their stages")
    known: dict[frozenset[int], dict[str, Any]] = {
      frozenset({0}): {"at": 0},
      frozenset({2}): {"at": -1},
      frozenset({0, 2}): {"at": 0, "or_last": True},
    }
    if len(stages) > 1 or (only := stages.pop()) not in known:
      raise NoCard(f"'{kind}' is on stages that no rule says")
    return {"axis": "pp", **known[only]}

  def _heads(self, rules: Sequence[tuple[str, Rule]], sight: Sight) -> None:
    """Has no rule for a head that a file stores although the config ties it: which of the two copies
    the framework takes was not seen."""
    key = next((k for k in _TIES if k in sight.numbers), None)
    tied = self.teacher.tied_names(self.config["architectures"][0])
    for _, rule in rules:
      if key is not None and rule["match"] in tied:
        rule["when"] = f"({key} ?? {sight.numbers[key]}) == {sight.numbers[key]}"

  # Experts, with and without expert parallelism.

  def _experts(
    self, rules: Sequence[tuple[str, Rule]], found: Mapping[str, Sequence[Seen]]
  ) -> Iterator[dict[str, str]]:
    """Says in rules how experts are spread; yields what must hold for that."""
    stacked = [rule for _, rule in rules if rule.get("each") or ".experts." in rule["match"]]
    if not stacked:
      yield {"that": "ep == 1", "says": "ep must be 1: the model has no experts"}
      return
    spread = self._sight(self.folders[0], _SPREAD, 0, (0,)).ranks[0]
    for kind, rule in rules:
      parts = [rule, *rule.get("with", ())]
      alone = (s for s in found[skeleton(kind)] if s.sight.model == 0 and not s.sight.sizes)
      one = next((s for s in alone if _is_of(kind, s.name)), None)
      if rule in stacked:
        for part in parts:
          inner = [cut | self.teacher.EXPERT_AXES | {"when": "ep == 1"} for cut in part.get("cuts", ())]
          whole = {"dim": 0, **self.teacher.EXPERT_AXES, "even": True, "when": "ep > 1"}
          part["cuts"] = [*inner, whole]
      elif one and one.name in spread and spread[one.name].shape == one.ranks[0].shape:
        # Each rank has tokens of its own, and all of what is not an expert.
        for cut in (cut for part in parts for cut in part.get("cuts", ())):
          cut["when"] = "ep == 1 || dp == 1 || tp == 1"


def _stages_of(kind: str, three: Sight) -> dict[tuple[int, ...], set[int]]:
  """By the numbers in the names of a kind's tensors: the stages that hold them."""
  seen: dict[tuple[int, ...], set[int]] = {}
  for stage, held in three.ranks.items():
    for name in held:
      if _is_of(kind, name):
        seen.setdefault(numbers_in(name), set()).add(stage)
  return seen


def _stage(layer: int, layers: int) -> int:
  """Of three stages, as vLLM has them. Only a guess where others do otherwise: it is predicted."""
  each = [layers // 3] * 3
  for i in range(layers % 3):
    each[1 - i] += 1
  return 0 if layer < each[0] else 1 if layer < each[0] + each[1] else 2


def _reason(sizes: Sizes, error: Exception) -> str:
  said = " ".join(str(error).split())[:300]
  return f"{_named(sizes)}: {type(error).__name__}: {said}"


def _named(sizes: Sizes) -> str:
  return ",".join(f"{k}={v}" for k, v in sizes.items()) or "tp=1"


# -- kinds: skeletons in which some '#' may be fixed


def _fixed(kind: str) -> list[int | None]:
  return [int(c) if c.isdigit() else None for c in kind.split(".") if c.isdigit() or c == "#"]


def _prefix(kind: str, at: int) -> str:
  """The kind's name up to its number at this position; the whole name if it has none."""
  components = skeleton(kind).split(".")
  numbered = [i for i, c in enumerate(components) if c == "#"]
  return ".".join(components[: numbered[at] + 1]) if at < len(numbered) else kind


def _is_of(kind: str, name: str) -> bool:
  if skeleton(name) != skeleton(kind):
    return False
  return all(w is None or n == w for n, w in zip(numbers_in(name), _fixed(kind), strict=True))


def _wildcards(rule: Rule) -> list[int]:
  """Of the wildcards of a rule, in order: the number of the local tensor's name that each is."""
  if "name" not in rule:
    numbered = [c for c in rule["match"].split(".") if c.isdigit() or c == "#"]
    return [i for i, c in enumerate(numbered) if c == "#"]
  numbered = [c for c in rule["name"].split(".") if c.isdigit() or c.startswith("$")]
  places = {int(c[1:]): i for i, c in enumerate(numbered) if c.startswith("$")}
  return [places[k] for k in sorted(places)]


def _splits(name: str, seen: Sequence[Seen]) -> Iterator[list[tuple[str, list[Seen]]]]:
  """Ways to take a kind apart by one of its numbers, the last first."""
  places = [i for i, fixed in enumerate(_fixed(name)) if fixed is None]
  models = {one.sight.model for one in seen}
  for at in reversed(places):
    values = [{numbers_in(o.name)[at] for o in seen if o.sight.model == m} for m in models]
    if len(values[0]) < 2 or any(v != values[0] for v in values):
      continue
    yield [
      (_with_number(name, at, value), [o for o in seen if numbers_in(o.name)[at] == value])
      for value in sorted(values[0])
    ]


def _with_number(name: str, at: int, value: int) -> str:
  components = name.split(".")
  numbered = [i for i, c in enumerate(components) if c.isdigit() or c == "#"]
  components[numbered[at]] = str(value)
  return ".".join(components)
