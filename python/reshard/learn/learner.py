# SPDX-License-Identifier: Apache-2.0
"""Learns a card from what a teacher shows, and has it predict the rest."""

import dataclasses
import itertools
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import reshard
from reshard.learn.fitting.apart import say_shapes
from reshard.learn.fitting.dropped import omissions
from reshard.learn.fitting.evidence import Sight, Unfit, skeleton
from reshard.learn.fitting.fit import Kind, Seen, kinds
from reshard.learn.fitting.kinds import Rule, alike, is_of, splits
from reshard.learn.fitting.rows import deal, in_rows
from reshard.learn.fitting.terms import Terms
from reshard.learn.models.stored import STORED

Sizes = Mapping[str, int]
_KEY = re.compile(r"[a-z_][a-z_0-9.]*")

#: Keys that count heads; models may have them equal.
_HEADS = ("num_attention_heads", "num_key_value_heads")
#: Keys of configs that tie the head to the embeddings.
TIES = ("tie_word_embeddings", "text_config.tie_word_embeddings")
#: What a card requires that saw them one way says so.
TIED = "the card was learned from models whose embeddings are "


class NoCard(reshard.UnsupportedError):
  """No card says what the framework does. One line."""


@dataclasses.dataclass(frozen=True)
class Row:
  """Where a card is to predict.

  model     0 and 1: those that learning saw; 2: the unseen one
  sizes     the parallel sizes
  seen      whether learning saw the model at these sizes
  ranks     those that are compared; None: all
  may_fail  the framework may have no layout of these sizes, and the card may refuse them
  """

  model: int
  sizes: Sizes
  seen: bool
  ranks: Sequence[int] | None = None
  may_fail: bool = False


@dataclasses.dataclass(frozen=True)
class Learned:
  """What has been learned so far: a rule for each kind of local tensors at tensor parallel sizes."""

  teacher: Any
  folders: Sequence[pathlib.Path]
  terms: Terms
  rules: list[tuple[str, Rule]]

  def sight(self, model: int, sizes: Sizes, ranks: Sequence[int] | None = None) -> Sight:
    return sight(self.teacher, self.folders[model], model, sizes, ranks)


def learn(teacher: Any, folders: Sequence[pathlib.Path], unseen: pathlib.Path) -> dict[str, Any]:
  """The card of the class of small checkpoints, proved.

  teacher   a module such as reshard.learn.vllm
  folders   two checkpoints of other sizes, to learn from
  unseen    a third one, to prove the card on

  Raises NoCard, with the reason.
  """
  card = _card(teacher, folders)
  card["require"] += _refuse_twins(card["rules"], [teacher.numbers_of(folder) for folder in (*folders, unseen)])
  card["card"]["proof"] = "; ".join(prove(teacher, card, folders, unseen))
  return card


def extended(
  teacher: Any,
  card: Mapping[str, Any],
  models: Sequence[pathlib.Path],
  others: Sequence[pathlib.Path],
  said: str,
  form: str | None = None,
) -> dict[str, Any]:
  """A card that also knows the tensors of models with other flags.

  models  the three checkpoints of learn()
  others  the same with flags that add or remove tensors
  said    what the flags are, for `proof`
  form    the key of the config by which rules for the same tensors can be told apart; None: a tensor tells

  Raises NoCard if one card cannot say both.
  """
  more = learn(teacher, others[:2], others[2])
  known, otherwise, added = list(card["rules"]), list[Rule](), list[Rule]()
  sign = _of_form(teacher, form, others) if form else _only_in(others, models)
  for rule in more["rules"]:
    for other in card["rules"]:
      _yield_to(rule, other)
    same = [i for i, other in enumerate(known) if _key(other) == _key(rule)]
    if not same:
      added.append(rule)
    if not same or rule in (known[i] for i in same):
      continue
    if sign is None or sign.keys() & rule.keys():
      raise NoCard(f"'{rule['match']}' is held otherwise with {said}")
    otherwise.append(rule | sign)
    for i in same if form else ():  # its parts would ask for tensors that the other rule has
      known[i] = _also_when(known[i], _of_form(teacher, form, models)["when"])
  require, others_require = _untied(card["require"]), _untied(more["require"])
  if require != others_require:
    raise NoCard(f"with {said} it asks for other sizes")
  if more["require"] == card["require"]:
    require = card["require"]  # embeddings are as they were
  out = {**card, "card": dict(card["card"]), "require": require, "rules": [*otherwise, *known, *added]}
  prove(teacher, out, models[:2], models[2])
  proved = "; ".join(prove(teacher, out, others[:2], others[2]))
  first = str(card["card"]["proof"]).partition("; with ")[0]
  out["card"]["proof"] += f"; with {said}: {'the same' if proved == first else proved}"
  return out


def also_for(
  teacher: Any,
  card: Mapping[str, Any],
  rules: Sequence[Rule],
  models: Sequence[pathlib.Path],
  others: Sequence[pathlib.Path],
  said: str,
) -> dict[str, Any]:
  """A card with these rules instead of its own, proved for both: the models of learn(), and others.

  Raises NoCard if it predicts one of them otherwise.
  """
  out = {**card, "card": dict(card["card"]), "rules": list(rules)}
  first = "; ".join(prove(teacher, out, models[:2], models[2]))
  proved = "; ".join(prove(teacher, out, others[:2], others[2]))
  out["card"]["proof"] += f"; with {said}: {'the same' if proved == first else proved}"
  return out


def without_layers(card: Mapping[str, Any]) -> list[Rule]:
  """The rules of a card, and one that leaves out layers beyond those that the config counts.

  Raises NoCard if no rule says how many these are.
  """
  count = next((w["of"] for rule in card["rules"] for w in rule.get("where", ()) if "of" in w), None)
  if count is None:
    raise NoCard("no rule says how many layers there are")
  return [{"match": "model.layers.#.*", "from": count, "omit": True}, *card["rules"]]


def _key(rule: Rule) -> tuple[str, ...]:
  """Which tensors a rule is for, and what it makes of them."""
  return (rule["match"], rule.get("name", ""), rule.get("from", ""), *map(str, rule.get("shape", ())))


def _of_form(teacher: Any, key: str | None, models: Sequence[pathlib.Path]) -> dict[str, str]:
  """What tells rules for these models from those for others: the value of a key of the config."""
  (value,) = {teacher.numbers_of(of)[key] for of in models}
  config = json.loads((models[0] / "config.json").read_text())
  return {"when": f"({key} ?? {teacher.defaults_of(config['model_type']).get(key, value)}) == {value}"}


def _also_when(rule: Rule, condition: str) -> Rule:
  return rule | {"when": f"({rule['when']}) && {condition}" if "when" in rule else condition}


def _only_in(models: Sequence[pathlib.Path], others: Sequence[pathlib.Path]) -> dict[str, str] | None:
  """What tells rules for these models from those for others: a tensor that all of them have and none of the others."""
  names, without = ([{t.name for t in reshard.open_model(of).tensors} for of in some] for some in (models, others))
  found = set[str].intersection(*names) - set[str]().union(*without)
  plain = sorted((name for name in found if not re.search(r"\d", name)), key=lambda name: (len(name), name))
  return {"beside": plain[0]} if plain else None


def _yield_to(rule: Rule, other: Rule) -> None:
  """Has a rule leave tensors to the same rule for another shape, where the sizes of a model make both shapes one."""
  one, two = rule.get("shape"), other.get("shape")
  if one and two and one != two and _key(rule)[:2] == _key(other)[:2] and len(one) == len(two):
    rule["when"] = " || ".join(f"{a} != {b}" for a, b in zip(one, two, strict=True) if a != b)


def _untied(require: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
  """Without what is required because embeddings were seen one way."""
  return [one for one in require if TIED not in one["says"]]


def card_text(card: Mapping[str, Any]) -> str:
  """The card as its file has it: one rule per line, and one entry of `complete`."""
  lists = {key: card[key] for key in ("complete", "rules") if key in card}
  head = json.dumps({key: value for key, value in card.items() if key not in lists})
  for key, entries in lists.items():
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    head = f'{head[:-1]},\n"{key}": [\n{lines}\n]}}'
  return head + "\n"


def prove(
  teacher: Any, card: Mapping[str, Any], folders: Sequence[pathlib.Path], unseen: pathlib.Path
) -> list[str]:
  """Has a card predict what ranks hold: where learning looked, and where it did not.

  Returns the sizes; raises NoCard for one that it predicts otherwise.
  """
  models = [*folders, unseen]
  proved = [
    _named(row.sizes) + ("" if row.seen else " (unseen)")
    for row in teacher.rows(card)
    if _predicts(teacher, card, models[row.model], row)
  ]
  return list(dict.fromkeys(proved))


def _predicts(
  teacher: Any, card: Mapping[str, Any], folder: pathlib.Path, row: Row
) -> bool:
  """False if the framework has no such layout, or the card refuses it, and may."""
  try:
    theirs = teacher.layout_of(folder, row.sizes, row.ranks)
  except Exception as error:
    if row.may_fail:
      return False
    raise NoCard(_reason(row.sizes, error)) from error
  keys: dict[str, Any] = dict(row.sizes)
  try:
    ours = reshard.rules_layout(card_text(card), reshard.open_model(folder), **keys)
  except reshard.Error as error:
    if row.may_fail:
      return False
    raise NoCard(f"{_named(row.sizes)}: the card is refused: {error}") from None
  traced = set(theirs.ranks)
  for one in reshard.diff(theirs, ours):
    if row.ranks is None or traced & set(one.ranks):
      raise NoCard(f"{_named(row.sizes)}: predicts other than the framework holds: {one}")
  return True


def _card(teacher: Any, folders: Sequence[pathlib.Path]) -> dict[str, Any]:
  config = json.loads((folders[0] / "config.json").read_text())
  sights = [sight(teacher, f, i, sizes) for i, f in enumerate(folders) for sizes in teacher.SEEN_AT]
  _refuse_parts(sights)
  numbers = [s.numbers for s in sights if not s.sizes]
  aliases = teacher.aliases_of(config["model_type"]) if hasattr(teacher, "aliases_of") else {}
  terms = Terms(numbers, teacher.defaults_of(config["model_type"]), aliases)
  found = {
    name: seen
    for name, seen in kinds(sights).items()
    if any(held.pieces for one in seen for held in one.ranks.values())
  }
  rules = [pair for name, seen in found.items() for pair in _rules(name, seen, terms)]
  for name, rule in rules:
    try:
      deal(rule, [one for one in found[skeleton(name)] if is_of(name, one.name)], terms)
      for form in STORED.get(config["model_type"], ()):
        say_shapes(rule, form.shaped, [one for one in sights if not one.sizes], terms)
    except Unfit as error:
      raise NoCard(f"'{name}': {error}") from None
  rules = _tell_apart(rules, found)
  _share(rules)
  learned = Learned(teacher, folders, terms, rules)
  sizes = teacher.finish(learned, found)
  try:
    omitted, more = omissions([one for one in sights if not one.sizes])
  except Unfit as error:
    raise NoCard(str(error)) from None
  rules = [
    *((rule["match"], rule) for rule in omitted if "from" in rule),
    *rules,
    *((rule["match"], rule) for rule in omitted if "from" not in rule),
  ]
  _refuse_tied(rules, teacher.tied_names(config["architectures"][0]), sights[0], teacher.defaults_of(config["model_type"]))
  return {
    "card": {
      "framework": teacher.FRAMEWORK,
      "release": teacher.RELEASE,
      "architectures": config["architectures"],
      "model_types": [config["model_type"]],
      "proof": "not proved",
    },
    "axes": sizes["axes"],
    "keys": sizes["keys"],
    "require": sizes["require"] + more,
    "dtype": teacher.DTYPE,
    "rules": [rule for _, rule in rules],
  }


def sight(
  teacher: Any,
  folder: pathlib.Path,
  model: int,
  sizes: Sizes,
  ranks: Sequence[int] | None = None,
) -> Sight:
  """What the teacher shows; whatever it raises is a reason for no card."""
  try:
    found: Sight = teacher.sight(folder, sizes, model, ranks)
  except Unfit as error:
    raise NoCard(str(error)) from None
  except Exception as error:
    raise NoCard(_reason(sizes, error)) from error
  return in_rows(found)


def _rules(name: str, seen: Sequence[Seen], terms: Terms) -> list[tuple[str, Rule]]:
  """The rules of a kind. Those whose local tensors are not alike are split by a number that does not
  count layers: it takes the same values in models of any depth."""
  if not alike(seen) and (apart := _apart(name, seen, terms)):
    return apart
  try:
    return [(name, Kind(name, seen, terms).rule())]
  except Unfit as error:
    if apart := _apart(name, seen, terms):
      return apart
    raise NoCard(f"'{name}': {error}") from None


def _apart(name: str, seen: Sequence[Seen], terms: Terms) -> list[tuple[str, Rule]]:
  """The rules of the parts of a kind; none if no way to take it apart has rules."""
  for groups in splits(name, seen):
    try:
      return [pair for n, some in groups for pair in _rules(n, some, terms)]
    except NoCard:
      continue
  return []


def _tell_apart(rules: Sequence[tuple[str, Rule]], found: Mapping[str, Sequence[Seen]]) -> list[tuple[str, Rule]]:
  """Rules of several tensors hold beside the second one where another rule has the first of them alone, in other layers."""
  first, others = list[tuple[str, Rule]](), list[tuple[str, Rule]]()
  for name, rule in rules:
    alone = [other for other, of in rules if of["match"] == rule["match"] and "with" not in of]
    if rule.get("with") and "beside" not in rule and any(not _tensors(name, found) & _tensors(o, found) for o in alone):
      count = itertools.count(1)
      rule["beside"] = re.sub("#", lambda _: f"${next(count)}", rule["with"][0]["match"])
      first.append((name, rule))
    else:
      others.append((name, rule))
  return [*first, *others]


def _tensors(kind: str, found: Mapping[str, Sequence[Seen]]) -> set[tuple[int, str]]:
  """What local tensors of a kind are made of, by model."""
  seen = [one for one in found[skeleton(kind)] if is_of(kind, one.name)]
  return {(one.sight.model, p.tensor) for one in seen for held in one.ranks.values() for p in held.pieces}


def _share(rules: Sequence[tuple[str, Rule]]) -> None:
  """Says of which tensors several local ones are made: a rule else owns those that it matches."""
  owned: set[str] = set()
  for _, rule in rules:
    for part in (rule, *rule.get("with", ())):
      if part["match"] in owned:
        part["shared"] = True
      if "beside" not in rule:
        owned.add(part["match"])


def _refuse_tied(
  rules: Sequence[tuple[str, Rule]], tied: frozenset[str], of: Sight, defaults: Mapping[str, int]
) -> None:
  """Has no rule for a head that a file stores although the config ties it: which of the two copies
  the framework takes was not seen."""
  key = next((k for k in TIES if k in of.numbers), None)
  for _, rule in rules:
    if key is not None and any(f".{rule['match']}".endswith(f".{name}") for name in tied):
      rule["when"] = f"({key} ?? {defaults.get(key, of.numbers[key])}) == {of.numbers[key]}"


def _refuse_parts(sights: Sequence[Sight]) -> None:
  """Has no card for models of which a loader takes a part of a tensor and says nothing: sizes of their configs do not
  fit each other."""
  for one in (one for one in sights if not one.sizes):
    held: dict[str, int] = {}
    for local in (local for rank in one.ranks.values() for local in rank.values()):
      for piece in local.pieces:
        held[piece.tensor] = held.get(piece.tensor, 0) + math.prod(e - b for b, e in zip(piece.begin, piece.end, strict=True))
    for name, count in held.items():
      if count < math.prod(one.shapes[name]):
        raise NoCard(f"ranks hold {count} of the {math.prod(one.shapes[name])} elements of '{name}'")


def _refuse_twins(rules: Any, numbers: Sequence[Mapping[str, int]]) -> list[dict[str, str]]:
  """Has no card whose sizes are said by a key of which another one of the same object is equal in all models:
  which of them is meant was not seen. Keys that never vary tell nothing apart. Of heads and KV heads, returns that they
  must be equal."""
  require: dict[str, dict[str, str]] = {}
  for key in sorted({key for text in _sizes_in(rules) for key in _KEY.findall(text)}):
    if any(key not in of for of in numbers) or len({of[key] for of in numbers}) == 1:
      continue
    scope = key.rpartition(".")[0]
    for other in numbers[0]:
      if other == key or other.rpartition(".")[0] != scope or any(of.get(other) != of[key] for of in numbers):
        continue
      if {key.rpartition(".")[2], other.rpartition(".")[2]} == set(_HEADS):
        heads, kv = (f"{scope}.{name}" if scope else name for name in _HEADS)
        require[heads] = {
          "that": f"({kv} ?? {heads}) == {heads}", "says": "the card was learned from models with a KV head for each head",
        }  # fmt: skip
      else:
        raise NoCard(f"'{key}' and '{other}' are equal in all models, so that neither is known to be meant")
  return list(require.values())


def _sizes_in(rule: Any) -> Iterator[str]:
  """The expressions of sizes in a rule."""
  for value in rule if isinstance(rule, list) else ():
    yield from _sizes_in(value)
  for key, value in rule.items() if isinstance(rule, dict) else ():
    if isinstance(value, str) and key in ("begin", "end", "period", "granule", "multiple", "interleave", "of"):
      yield value
    elif key == "shape":
      yield from map(str, value)
    else:
      yield from _sizes_in(value)


def _reason(sizes: Sizes, error: Exception) -> str:
  said = " ".join(str(error).split())[:300]
  return f"{_named(sizes)}: {type(error).__name__}: {said}"


def _named(sizes: Sizes) -> str:
  return ",".join(f"{k}={v}" for k, v in sizes.items()) or "tp=1"
