# SPDX-License-Identifier: Apache-2.0
"""How SGLang's parallel sizes cut what tensor parallelism cuts, as its cards say it. Does not import SGLang."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.learn import engines
from reshard.learn.engines import RANKS_OF, Stages, expert_rules, parts_of, place_experts
from reshard.learn.fitting.evidence import Sight
from reshard.learn.fitting.fit import Seen
from reshard.learn.fitting.kinds import Rule, is_of
from reshard.learn.learner import Learned, NoCard, Row, Sizes

#: Of stages that layers do not divide (distributed/utils.py, get_pp_indices).
STAGES = {"rest": "last"}

# dp and ep cut the ranks of tp: a rank of attention is one of the tp / dp fastest, a part of an expert one of the
# tp / ep fastest. Where a class has both, one refines the other: rank = (tp_outer * middle size + tp_middle) * inner size
# + tp_inner.
_PLAIN = [{"name": "tp", "size": 1}]
_TWO = [{"name": "tp_inner", "size": "tp / {0}"}, {"name": "tp_outer", "size": "{0}"}]
_THREE = [
  {"name": "tp_inner", "size": "tp / ((dp >= ep) * dp + (dp < ep) * ep)"},
  {"name": "tp_middle", "size": "(dp >= ep) * dp / ep + (dp < ep) * ep / dp"},
  {"name": "tp_outer", "size": "(dp >= ep) * ep + (dp < ep) * dp"},
]
_OTHERS = [{"name": "pp", "size": 1}, {"name": "replicas", "size": 1}]
_DIVIDES = {key: {"that": f"tp % {key} == 0", "says": f"{key} must divide tp"} for key in ("dp", "ep")}
_REFINES = {"that": "dp % ep == 0 || ep % dp == 0", "says": "one of dp and ep must divide the other"}
_ALL_OF = {
  2: {"axes": ["tp_outer", "tp_inner"], "combine": "flattened"},
  3: {"axes": ["tp_outer", "tp_middle", "tp_inner"], "combine": "flattened"},
}
_INNER: Rule = {"axes": ["tp_inner"]}
_OUTER: Rule = {"axes": ["tp_outer"]}
_BOTH_INNER: Rule = {"axes": ["tp_middle", "tp_inner"], "combine": "flattened"}
_BOTH_OUTER: Rule = {"axes": ["tp_outer", "tp_middle"], "combine": "flattened"}
_SPREAD: Sizes = {"tp": 4, "dp": 2}
_TOWER_HEADS = re.compile(r".*vi(sion|sual)[a-z_]*\.(num_heads|num_attention_heads)")


def rows(card: Mapping[str, Any]) -> list[Row]:
  """Where a card is to predict."""
  refused = {r["that"] for r in card["require"]}
  out = engines.rows(refused)
  if "ep == 1" not in refused:
    out += [Row(2, {"tp": 2, "ep": 2}, False), Row(0, {"tp": 4, "ep": 2}, False, RANKS_OF[4])]
  if "dp == 1" not in refused:
    out += [Row(0, _SPREAD, True, RANKS_OF[4]), Row(1, _SPREAD, False, RANKS_OF[4]), Row(2, {"tp": 2, "dp": 2}, False)]
  if not refused & {"ep == 1", "dp == 1"}:
    out += [Row(1, {**_SPREAD, "ep": 4}, False, RANKS_OF[4]), Row(0, {"tp": 4, "dp": 4, "ep": 2}, False, RANKS_OF[4])]
  return out


def finish(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
  """Says in the rules on which stages they hold, and how dp and ep spread what tp cuts; returns the axes, the keys
  and what must hold."""
  stages = [*Stages(learned).say(), *_towers(learned)]
  experts = expert_rules(learned)
  others = [kind for kind, rule in learned.rules if not any(rule is one for one in experts)]
  how, alone = _attention(learned, others)
  alone += _experts_alone(learned, experts)
  names = [key for key in ("dp", "ep") if f"{key} == 1" not in {r["that"] for r in alone}]
  keys = [{"name": "dp"}, {"name": "ep"}]
  if not names:
    return {"axes": [*_PLAIN, *_OTHERS], "keys": keys, "require": [*alone, *stages]}
  axes = _THREE if len(names) == 2 else [{k: v.format(*names) for k, v in axis.items()} for axis in _TWO]
  for kind, rule in learned.rules:
    for part in parts_of(rule):
      cuts = [new for cut in part.pop("cuts", ()) for new in _over(cut, how.get(kind, "expert"), len(axes))]
      if kind not in how:
        cuts += _pair({"dim": 0, "even": True}, _OUTER, _BOTH_OUTER, "dp >= ep", len(axes))
      if cuts:
        part["cuts"] = cuts
  divide = [*(_DIVIDES[key] for key in names), *([_REFINES] if len(names) == 2 else [])]
  placed = place_experts(experts) if "ep" in names else []
  return {"axes": [*axes, *_OTHERS], "keys": [{"name": "tp"}, *keys, *placed], "require": [*alone, *divide, *stages]}


def _towers(learned: Learned) -> list[dict[str, str]]:
  """Ranks must divide the heads of towers: SGLang pads or repeats them otherwise, which no rule says."""
  numbers = learned.sight(0, {}).numbers
  keys = [k for k in numbers if _TOWER_HEADS.fullmatch(k) and numbers[k] > 1]
  return [{"that": f"{key} % tp == 0", "says": f"tp must divide {key}"} for key in keys]


def _experts_alone(learned: Learned, experts: Sequence[Rule]) -> list[dict[str, str]]:
  """Why ep must be 1, if it must."""
  if not experts:
    return [{"that": "ep == 1", "says": "ep must be 1: no tensor holds several experts"}]
  try:
    learned.sight(0, {"tp": 2, "ep": 2}, (0,))
  except NoCard as error:
    return [{"that": "ep == 1", "says": f"ep must be 1: SGLang says {str(error)[:160]}"}]
  return []


def _attention(
  learned: Learned, kinds: Sequence[str]
) -> tuple[dict[str, str], list[dict[str, str]]]:
  """How each kind of tensors is cut with dp, and why dp must be 1, if it must."""
  over_all = dict.fromkeys(kinds, "all")
  try:
    seen = learned.sight(0, _SPREAD, (1, 2))
  except NoCard as error:
    return over_all, [{"that": "dp == 1", "says": f"dp must be 1: SGLang says {str(error)[:160]}"}]
  sights = [learned.sight(0, sizes) for sizes in ({"tp": 4}, {"tp": 2}, {})]
  how = {kind: _cut_over(kind, seen, *sights) for kind in kinds}
  if "attention" in how.values():
    return how, []
  return over_all, [{"that": "dp == 1", "says": "dp must be 1: the class cuts attention over all ranks of tp"}]


def _cut_over(kind: str, seen: Sight, over_all: Sight, over_some: Sight, whole: Sight) -> str:
  """How ranks 1 and 2 of tp=4, dp=2 hold a kind of tensors: as those of tp=4 ("all"), of tp=2 ("attention"), or
  of tp=1 ("whole")."""
  held = [(rank, name, one) for rank, all_ in seen.ranks.items() for name, one in all_.items() if is_of(kind, name)]
  if all(over_all.ranks[rank].get(name) == one for rank, name, one in held):
    return "all"
  if all(over_some.ranks[rank % 2].get(name) == one for rank, name, one in held):
    return "attention"
  if all(whole.ranks[0].get(name) == one for _, name, one in held):
    return "whole"
  raise NoCard(f"'{kind}' is cut by dp in a way that no rule says")


def _over(cut: Rule, how: str, parts: int) -> list[Rule]:
  """The cuts over the parts of tp that stand for one over tp. `parts`: 2 or 3."""
  if how == "all":
    return [cut | _ALL_OF[parts]]
  if how == "whole":
    return [cut | _ALL_OF[parts] | {"when": "dp == 1"}]
  return _pair(cut, _INNER, _BOTH_INNER, "dp >= ep" if how == "attention" else "dp < ep", parts)


def _pair(cut: Rule, one: Rule, both: Rule, when: str, parts: int) -> list[Rule]:
  """A cut over one part of tp or, of three, over two of them if `when` does not hold."""
  if parts == 2:
    return [cut | one]
  other = {"dp >= ep": "dp < ep", "dp < ep": "dp >= ep"}[when]
  return [cut | one | {"when": when}, cut | both | {"when": other}]
