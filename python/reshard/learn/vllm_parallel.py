# SPDX-License-Identifier: Apache-2.0
"""How vLLM's parallel sizes cut what tensor parallelism cuts, as its cards say it. Does not import vLLM."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.learn import engines
from reshard.learn.engines import RANKS_OF, Stages, expert_rules, keep_towers_whole, parts_of, place_experts
from reshard.learn.fitting.evidence import skeleton
from reshard.learn.fitting.fit import Seen
from reshard.learn.fitting.kinds import is_of
from reshard.learn.learner import Learned, Row, Sizes

#: Of stages that layers do not divide (distributed/utils.py, get_pp_indices).
STAGES = {"rest": "before_last"}
_AXES = [{"name": name, "size": 1} for name in ("tp", "pp", "dp", "replicas")]
_REQUIRE = [{"that": "ep == 1 || ep == tp * dp", "says": "ep must be 1 or tp * dp"}]
_MANY = "redundant > 0 || expert_map"
_PLACED = [
  {"that": f"ep > 1 || ({_MANY}) == 0", "says": "redundant experts and expert_map need ep above 1"},
  {"that": f"placement.linear || ({_MANY}) == 0", "says": "placement=round_robin excludes redundant experts and expert_map"},
]  # fmt: skip
_PLACEMENT = {"name": "placement", "words": ["linear", "round_robin"]}
# How vLLM spreads experts: whole ones with ep, else parts of each, over all ranks of a stage.
_OVER = {"axes": ["dp", "tp"], "combine": "flattened"}
_SPREAD: Sizes = {"tp": 2, "dp": 2, "ep": 4}
_EXPERT_SIZES: tuple[Sizes, ...] = ({"tp": 2, "ep": 2}, {"tp": 2, "dp": 2}, _SPREAD)


def rows(card: Mapping[str, Any]) -> list[Row]:
  """Where a card is to predict."""
  refused = {r["that"] for r in card["require"]}
  out = engines.rows(refused)
  if "ep == 1" not in refused:
    for sizes in _EXPERT_SIZES:
      ranks = RANKS_OF.get(sizes["tp"] * sizes.get("dp", 1))
      out.append(Row(0 if "dp" in sizes else 2, sizes, False, ranks))
  return out


def finish(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
  """Says in the rules on which stages they hold and how experts are spread; returns the axes, the keys and what
  must hold."""
  keep_towers_whole(learned)
  require = [*_REQUIRE, *Stages(learned).say(), *_experts(learned, found)]
  placed = place_experts(expert_rules(learned), _PLACEMENT)
  return {"axes": _AXES, "keys": [{"name": "ep"}, *placed], "require": require + (_PLACED if placed else [])}


def _experts(
  learned: Learned, found: Mapping[str, Sequence[Seen]]
) -> Iterator[dict[str, str]]:
  """Says in rules how experts are spread, with and without expert parallelism; yields what must hold
  for that."""
  stacked = expert_rules(learned)
  if not stacked:
    yield {"that": "ep == 1", "says": "ep must be 1: the model has no experts"}
    return
  spread = learned.sight(0, _SPREAD, (0,)).ranks[0]
  for kind, rule in learned.rules:
    parts = parts_of(rule)
    alone = (s for s in found[skeleton(kind)] if s.sight.model == 0 and not s.sight.sizes)
    one = next((s for s in alone if is_of(kind, s.name)), None)
    if rule in stacked:
      for part in parts:
        inner = [cut | _OVER | {"when": "ep == 1"} for cut in part.get("cuts", ())]
        whole = {"dim": 0, **_OVER, "even": True, "when": "ep > 1"}
        part["cuts"] = [*inner, whole]
    elif one and one.name in spread and spread[one.name].shape == one.ranks[0].shape:
      # Each rank has tokens of its own, and all of what is not an expert.
      for cut in (cut for part in parts for cut in part.get("cuts", ())):
        also = f"({cut['when']}) && " if "when" in cut else ""
        cut["when"] = f"{also}(ep == 1 || dp == 1 || tp == 1)" if also else "ep == 1 || dp == 1 || tp == 1"
