# SPDX-License-Identifier: Apache-2.0
"""Teaches the layouts of SGLang: traces of its own classes and loaders, on small models."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.tracing.vision import import_torchvision

import_torchvision()  # before SGLang and transformers ask whether it is there

import sglang  # noqa: E402

from reshard import _core  # noqa: E402
from reshard.learn import engines  # noqa: E402
from reshard.learn.configs import classes as all_classes, defaults_of, numbers_of, tied_names  # noqa: E402
from reshard.learn.engines import RANKS_OF, SEEN_AT, Stages, expert_rules, parts_of, proved_with_values  # noqa: E402
from reshard.learn.evidence import Sight  # noqa: E402
from reshard.learn.fit import Seen  # noqa: E402
from reshard.learn.kinds import Rule, is_of  # noqa: E402
from reshard.learn.learner import Learned, NoCard, Row, Sizes  # noqa: E402
from reshard.tracing.sglang import trace_sglang  # noqa: E402

__all__ = [
  "DTYPE", "FRAMEWORK", "RELEASE", "SEEN_AT", "STAGES", "classes", "defaults_of", "finish", "layout_of", "rows", "sight",
  "tied_names",
]  # fmt: skip

FRAMEWORK, RELEASE = "sglang", sglang.__version__.split("+")[0]
#: Engines are built in the config's dtype, whatever the checkpoint has.
DTYPE = "config"
#: Of stages that layers do not divide (distributed/utils.py, get_pp_indices).
STAGES = {"rest": "last"}

# dp and ep cut the ranks of tp in two ways, of which one refines the other: rank = (outer * middle sizes + middle) *
# inner size + inner. A rank of attention is one of the tp / dp fastest, a part of an expert one of the tp / ep fastest.
_PLAIN = [{"name": "tp", "size": 1}]
_REFINED = [
  {"name": "inner", "size": "tp / ((dp >= ep) * dp + (dp < ep) * ep)"},
  {"name": "middle", "size": "(dp >= ep) * dp / ep + (dp < ep) * ep / dp"},
  {"name": "outer", "size": "(dp >= ep) * ep + (dp < ep) * dp"},
]
_OTHERS = [{"name": "pp", "size": 1}, {"name": "replicas", "size": 1}]
_DIVIDE = [
  {"that": "tp % dp == 0", "says": "dp must divide tp"},
  {"that": "tp % ep == 0", "says": "ep must divide tp"},
  {"that": "dp % ep == 0 || ep % dp == 0", "says": "one of dp and ep must divide the other"},
]
_ALL: Rule = {"axes": ["outer", "middle", "inner"], "combine": "flattened"}
_FASTEST: Rule = {"axes": ["inner"]}
_BOTH_FASTEST: Rule = {"axes": ["middle", "inner"], "combine": "flattened"}
_WHOLE_EXPERTS: list[Rule] = [
  {"dim": 0, "axes": ["outer"], "even": True, "when": "dp >= ep"},
  {"dim": 0, "axes": ["outer", "middle"], "combine": "flattened", "even": True, "when": "dp < ep"},
]
_TOWER_HEADS = re.compile(r".*vi(sion|sual)[a-z_]*\.(num_heads|num_attention_heads)")
_SPREAD: Sizes = {"tp": 4, "dp": 2}


def classes() -> list[str]:
  """The classes with a language model's head that both transformers and this SGLang have."""
  from sglang.srt.models.registry import ModelRegistry

  known = ModelRegistry.get_supported_archs()
  return [name for name in all_classes() if name in known]


def layout_of(
  folder: pathlib.Path, sizes: Sizes, ranks: Sequence[int] | None = None
) -> _core.Layout:
  """What SGLang's loader leaves on ranks (None: on all), at these sizes."""
  keys: dict[str, Any] = dict(sizes)
  return trace_sglang(folder, ranks=ranks, prove=proved_with_values(sizes), **keys).layout


def sight(
  folder: pathlib.Path, sizes: Sizes, model: int, ranks: Sequence[int] | None = None
) -> Sight:
  return Sight.of(layout_of(folder, sizes, ranks), sizes, numbers_of(folder), model)


def rows(card: Mapping[str, Any]) -> list[Row]:
  """Where a card is to predict."""
  refused = {r["that"] for r in card["require"]}
  out = engines.rows(refused)
  if "ep == 1" not in refused:
    out += [Row(2, {"tp": 2, "ep": 2}, False), Row(0, {"tp": 4, "ep": 2}, False, RANKS_OF[4])]
  if "dp == 1" not in refused:
    out += [Row(0, _SPREAD, True, RANKS_OF[4]), Row(1, _SPREAD, False, RANKS_OF[4]), Row(2, {"tp": 2, "dp": 2}, False)]
  if not refused & {"ep == 1", "dp == 1"}:
    out += [Row(1, _SPREAD | {"ep": 4}, False, RANKS_OF[4]), Row(0, {"tp": 4, "dp": 4, "ep": 2}, False, RANKS_OF[4])]
  return out


def finish(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
  """Says in the rules on which stages they hold, and how dp and ep spread what tp cuts; returns the axes, the keys
  and what must hold."""
  stages = [*Stages(learned).say(), *_towers(learned)]
  experts = expert_rules(learned)
  others = [kind for kind, rule in learned.rules if not any(rule is one for one in experts)]
  how, alone = _attention(learned, others)
  alone += _experts_alone(learned, experts)
  keys = [{"name": "dp"}, {"name": "ep"}]
  if len(alone) == 2:
    return {"axes": [*_PLAIN, *_OTHERS], "keys": keys, "require": [*alone, *stages]}
  for kind, rule in learned.rules:
    for part in parts_of(rule):
      cuts = [new for cut in part.pop("cuts", ()) for new in _over(cut, how.get(kind, "expert"))]
      if kind not in how:
        cuts += _WHOLE_EXPERTS
      if cuts:
        part["cuts"] = cuts
  require = [*alone, *_DIVIDE, *stages]
  return {"axes": [*_REFINED, *_OTHERS], "keys": [{"name": "tp"}, *keys], "require": require}


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


def _over(cut: Rule, how: str) -> list[Rule]:
  """The cuts over parts of tp that stand for one over tp."""
  if how == "all":
    return [cut | _ALL]
  if how == "whole":
    return [cut | _ALL | {"when": "dp == 1"}]
  one, both = ("dp >= ep", "dp < ep") if how == "attention" else ("dp < ep", "dp >= ep")
  return [cut | _FASTEST | {"when": one}, cut | _BOTH_FASTEST | {"when": both}]
