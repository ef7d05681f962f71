# SPDX-License-Identifier: Apache-2.0
"""Says of which tensors a class has all or none, and which ones each of its models has: the key `complete` of cards.

It is learned from names alone: those of small models whose sizes and flags differ (variants.py). What the models do
not tell apart is not said, so that no model is refused that the class can have.
"""

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reshard.learn.fitting.kinds import Rule
from reshard.learn.learner import TIES
from reshard.learn.models.configs import aliases_of, defaults_of
from reshard.learn.models.variants import Variant

Numbers = tuple[int, ...]
#: (variant, numbers in the name)
Places = frozenset[tuple[int, Numbers]]
Entry = dict[str, Any]
_COUNTS = ("layer", "expert", "depth", "block", "num_", "n_")
#: Of a number that counts nothing, such as the layers of a projector: the most values that are taken one by one.
_MOST_FIXED = 16


class Incomplete(Exception):
  """Why a card cannot say which tensors a model must have. One line."""


def complete_of(card: Mapping[str, Any], variants: Sequence[Variant]) -> list[Entry]:
  """The key `complete` of a card, from models of its class.

  Raises Incomplete if the card does not know their tensors.
  """
  known = known_by(card, variants)
  if sum(v.plain for v, _ in known) < 3:
    raise Incomplete("no rule matches some tensors of each small model")
  model_type = known[0][0].config["model_type"]
  keys = _Keys([v for v, _ in known], defaults_of(model_type), aliases_of(model_type))
  return list(_Learner(keys, [names for _, names in known], card["card"]["framework"] == "transformers").entries())


def known_by(card: Mapping[str, Any], variants: Sequence[Variant]) -> list[tuple[Variant, list[str]]]:
  """The models that a card knows, with the tensors that it does not leave out."""
  kept, left_out = _patterns(card["rules"], False), _patterns(card["rules"], True)
  return [
    (v, [name for name in v.names if _matches(kept, name)])
    for v in variants
    if all(_matches(kept, name) or _matches(left_out, name) for name in v.names)
  ]


def _patterns(rules: Iterable[Rule], omitted: bool) -> re.Pattern[str]:
  of = (part["match"] for rule in rules if bool(rule.get("omit")) == omitted for part in (rule, *rule.get("with", ())))
  texts = {re.escape(match).replace(r"\#", r"\d+").replace(r"\*", ".*") for match in of}
  return re.compile("|".join(sorted(texts)) or r"(?!)")


def _matches(pattern: re.Pattern[str], name: str) -> bool:
  return pattern.fullmatch(name) is not None


class _Keys:
  """The keys of the variants' configs, and the expressions of them that say what was seen."""

  def __init__(self, variants: Sequence[Variant], defaults: Mapping[str, int], aliases: Mapping[str, str]) -> None:
    self.numbers = [v.numbers for v in variants]
    self._defaults, self._aliases = defaults, aliases
    said = set[str].union(*map(set, self.numbers))
    self._flags = sorted(k for k in said if all(n.get(k, 0) in (0, 1) for n in self.numbers))
    self._counts = sorted(k for k in said if any(word in k.rpartition(".")[2] for word in _COUNTS))

  def text_of(self, key: str) -> str:
    """The key as an expression has it. Older files have the keys of the decoder beside those of the towers."""
    alias = f"{self._aliases[key]} ?? " if key in self._aliases else ""
    flat = f" ?? {key.removeprefix('text_config.')}" if key.startswith("text_config.") else ""
    return f"({alias}{key}{flat} ?? {self._defaults.get(key, 0)})"

  def counting(self, seen: Mapping[int, int]) -> str | None:
    """The only key with these values, by variant; none if several have them, or they never vary."""
    if len(set(seen.values())) < 2:
      return None
    fitting = [k for k in self._counts if all(self.numbers[v].get(k) == n for v, n in seen.items())]
    return fitting[0] if len(fitting) == 1 else None

  def when(self, variants: frozenset[int]) -> str | None:
    """The condition that holds in these variants only, if one flag says it."""
    if tied := self._untied(variants):
      return tied
    for wanted in (True, False):
      fitting = [
        k for k in self._flags if all(bool(of.get(k, 0)) == ((v in variants) == wanted) for v, of in enumerate(self.numbers))
      ]
      if len(fitting) == 1:
        return self.text_of(fitting[0]) if wanted else f"({self.text_of(fitting[0])} == 0)"
    return None

  def _untied(self, variants: frozenset[int]) -> str | None:
    """Embeddings that are not tied. A decoder's own key counts if a file has it, whatever the class would take."""
    for key in TIES:
      if all((v in variants) == (of.get(key, 0) == 0) for v, of in enumerate(self.numbers)):
        others = [other for other in TIES if other != key and "." not in key and any(other in of for of in self.numbers)]
        return " && ".join([f"{self.text_of(key)} == 0", *(f"({other} ?? 0) == 0" for other in others)])
    return None


@dataclasses.dataclass(frozen=True)
class _Kind:
  """A name with '#' for the numbers that count, the text before its last number, and where it was seen."""

  pattern: str
  chain: str
  places: Places

  @property
  def module(self) -> str:
    return self.pattern.removeprefix(self.chain).lstrip(".").partition(".")[0]


class _Learner:
  def __init__(self, keys: _Keys, names: Sequence[Sequence[str]], heads_may_lack: bool) -> None:
    self._keys, self._names, self._heads_may_lack = keys, names, heads_may_lack
    self._by_prefix: dict[str, dict[tuple[int, Numbers], set[int]]] = collections.defaultdict(dict)
    for v, of in enumerate(names):
      for name in of:
        for prefix, numbers in _prefixes(name):
          self._by_prefix[prefix].setdefault((v, numbers[:-1]), set()).add(numbers[-1])
    self._count = {prefix: self._counting(prefix) for prefix in self._by_prefix}
    self._fixed = {prefix for prefix in self._by_prefix if self._is_fixed(prefix)}
    self._key_of: dict[str, str | None] = {}
    self._kinds = self._all_kinds()

  def entries(self) -> Iterator[Entry]:
    by_chain = collections.defaultdict[str, list[_Kind]](list)
    for kind in self._kinds:
      by_chain[kind.chain].append(kind)
    partial = collections.defaultdict[str, list[list[_Kind]]](list)
    for chain, of in by_chain.items():
      if chain.count("#") > 1:
        yield from self._of_units(chain, of)
      else:
        yield from self._of_layers(chain, of, partial)
    for key, groups in partial.items():
      yield from self._alternatives(key, groups)

  # -- names

  def _counting(self, prefix: str) -> str | None:
    """The key that counts the last number of names that begin so."""
    seen = self._by_prefix[prefix]
    counts: dict[int, set[int]] = collections.defaultdict(set)
    for (v, _), values in seen.items():
      if values != set(range(len(values))):
        return None
      counts[v].add(len(values))
    if any(len(found) > 1 for found in counts.values()):
      return None
    return self._keys.counting({v: found.pop() for v, found in counts.items()})

  def _is_fixed(self, prefix: str) -> bool:
    """Whether the last number tells apart what is not alike, and has the same values in all models."""
    values = list(self._by_prefix[prefix].values())
    gaps = values[0] != set(range(len(values[0])))
    return self._count[prefix] is None and all(v == values[0] for v in values) and gaps and len(values[0]) <= _MOST_FIXED

  def _all_kinds(self) -> list[_Kind]:
    places: dict[tuple[str, str], set[tuple[int, Numbers]]] = collections.defaultdict(set)
    for v, of in enumerate(self._names):
      for name in of:
        pattern, numbers, prefixes = self._pattern(name)
        chain = _chain(pattern)
        self._key_of[chain] = self._count.get(prefixes[-1]) if prefixes else None
        places[pattern, chain].add((v, numbers))
        if len(numbers) > 1 and numbers[-1] == 0:  # the first expert stands for all of them in its layer
          first = f"{chain[:-1]}0{pattern.removeprefix(chain)}"
          places[first, _chain(first)].add((v, numbers[:-1]))
          self._key_of[_chain(first)] = self._count.get(prefixes[-2])
    return [_Kind(pattern, chain, frozenset(of)) for (pattern, chain), of in sorted(places.items())]

  def _pattern(self, name: str) -> tuple[str, Numbers, list[str]]:
    """The name's pattern, its numbers there, and their prefixes."""
    prefixes = dict(zip(_at(name), _prefixes(name), strict=True))
    out: list[str] = []
    numbers: list[int] = []
    used: list[str] = []
    for i, component in enumerate(name.split(".")):
      if i in prefixes and prefixes[i][0] not in self._fixed:
        out.append("#")
        numbers.append(int(component))
        used.append(prefixes[i][0])
      else:
        out.append(component)
    return ".".join(out), tuple(numbers), used

  # -- entries

  def _of_units(self, chain: str, of: Sequence[_Kind]) -> Iterator[Entry]:
    """Of names with several numbers, such as experts in layers."""
    key = self._key_of[chain]
    for group in _alike(of):
      places = group[0].places
      fronts = {(v, numbers[:-1]) for v, numbers in places}
      if key is not None and places == {
        (v, (*front, i)) for v, front in fronts for i in range(self._keys.numbers[v].get(key, 0))
      }:
        yield _entry("all", group, of=self._keys.text_of(key))
      elif len(group) > 1:
        yield _entry("all", group)

  def _of_layers(
    self, chain: str, of: Sequence[_Kind], partial: dict[str, list[list[_Kind]]]
  ) -> Iterator[Entry]:
    """Of names with one number, or none. `partial`: receives groups that some of the numbers have, by the key that
    counts them."""
    key = self._key_of.get(chain) if chain else ""
    for group in _alike(of):
      asked = self._asked(group[0].places, key)
      if asked is not None:
        yield _entry("all", group, **asked)
        continue
      parts = [group] if key is None or self._depends_on_models(group[0].places, key) else _by_module(group)
      for part in parts:
        if len(part) > 1:
          yield _entry("all", part)
        if key is not None:
          partial[key].append(part)

  def _domain(self, key: str) -> Places:
    """All numbers below a key's value, in all models; of no key: one place in each model."""
    return frozenset(
      (v, (i,) if key else ()) for v, of in enumerate(self._keys.numbers) for i in range(of.get(key, 0) if key else 1)
    )

  def _depends_on_models(self, places: Places, key: str) -> bool:
    """Whether each model has all of these tensors or none."""
    has = {v for v, _ in places}
    return places == {place for place in self._domain(key) if place[0] in has}

  def _asked(self, places: Places, key: str | None) -> dict[str, str] | None:
    """What asks for a group of tensors, if all models have it, or those that one flag says."""
    if key is None or not self._depends_on_models(places, key):
      return None
    of = frozenset(v for v, _ in places)
    every = len(of) == len(self._names) or not {v for v, _ in self._domain(key)} - of
    when = None if every else self._keys.when(of)
    if not every and (when is None or (self._heads_may_lack and any(tie in when for tie in TIES))):
      return None
    if not key:
      return {"must": when or "1"}
    count = self._keys.text_of(key)
    if when is None:
      return {"of": count}
    return {"of": f"({when}) * {count}" if "&&" in when or not when.endswith(")") else f"{when} * {count}"}

  def _alternatives(self, key: str, groups: Sequence[list[_Kind]]) -> Iterator[Entry]:
    """Of groups of which each layer has exactly one: in modules of one name, or two that only fit each other."""
    domain = self._domain(key)
    asked = {"of": self._keys.text_of(key)} if key else {"must": "1"}
    done: set[str] = set()
    for module in sorted({g[0].module for g in groups}):
      largest = _largest([g for g in groups if g[0].module == module])
      if len(largest) > 1 and _divide(domain, largest):
        done.add(module)
        yield _entry("any", [g[0] for g in largest], **asked)
    rest = _largest([g for g in groups if g[0].module not in done])
    others = [[o for o in rest if _divide(domain, (o, g))] for g in rest]
    for (one, of_one), (two, of_two) in itertools.combinations(zip(rest, others, strict=True), 2):
      if of_one == [two] and of_two == [one]:
        yield _entry("any", [one[0], two[0]], **asked)


def _chain(pattern: str) -> str:
  """A pattern up to its last number; empty without one."""
  return pattern[: pattern.rfind("#") + 1]


def _at(name: str) -> list[int]:
  return [i for i, component in enumerate(name.split(".")) if component.isdigit()]


def _prefixes(name: str) -> list[tuple[str, Numbers]]:
  """For each number of a name: the name up to it, with '#' for the numbers, and these."""
  components = name.split(".")
  at = _at(name)
  texts = ["#" if component.isdigit() else component for component in components]
  return [(".".join(texts[: i + 1]), tuple(int(components[k]) for k in at[: n + 1])) for n, i in enumerate(at)]


def _alike(kinds: Iterable[_Kind]) -> list[list[_Kind]]:
  """By where they are."""
  groups: dict[Places, list[_Kind]] = {}
  for kind in kinds:
    groups.setdefault(kind.places, []).append(kind)
  return list(groups.values())


def _by_module(group: Iterable[_Kind]) -> list[list[_Kind]]:
  parts: dict[str, list[_Kind]] = {}
  for kind in group:
    parts.setdefault(kind.module, []).append(kind)
  return list(parts.values())


def _largest(groups: Sequence[list[_Kind]]) -> list[list[_Kind]]:
  """Without those that are only where another one is."""
  return [
    g
    for i, g in enumerate(groups)
    if not any(
      g[0].places < o[0].places or (g[0].places == o[0].places and k < i and g[0].module == o[0].module)
      for k, o in enumerate(groups)
    )
  ]


def _divide(domain: Places, groups: Sequence[list[_Kind]]) -> bool:
  places = [place for g in groups for place in g[0].places]
  return len(places) == len(domain) and frozenset(places) == domain


def _entry(how: str, kinds: Sequence[_Kind], **asked: str) -> Entry:
  patterns = [kind.pattern for kind in kinds]
  front = os.path.commonprefix(patterns)
  front = front[: front.rfind(".") + 1] if len(patterns) > 1 else ""
  return {**({"front": front} if front else {}), how: [p.removeprefix(front) for p in patterns], **asked}
