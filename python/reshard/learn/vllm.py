# SPDX-License-Identifier: Apache-2.0
"""Teaches the layouts of vLLM: traces of its own classes and loaders, on small models."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.tracing.vision import import_torchvision

import_torchvision()  # before vLLM and transformers ask whether it is there

import vllm  # noqa: E402

from reshard import _core  # noqa: E402
from reshard.learn.configs import classes as all_classes, defaults_of, numbers_of, tied_names  # noqa: E402
from reshard.learn import engines  # noqa: E402
from reshard.learn.engines import RANKS_OF, SEEN_AT, Stages, expert_rules, parts_of, proved_with_values  # noqa: E402
from reshard.learn.evidence import Sight, skeleton  # noqa: E402
from reshard.learn.fit import Seen  # noqa: E402
from reshard.learn.kinds import is_of  # noqa: E402
from reshard.learn.learner import Learned, Row, Sizes  # noqa: E402
from reshard.tracing.vllm import trace_vllm  # noqa: E402

__all__ = [
  "DTYPE", "FRAMEWORK", "RELEASE", "SEEN_AT", "STAGES", "classes", "defaults_of", "finish", "layout_of", "rows", "sight",
  "tied_names",
]  # fmt: skip

FRAMEWORK, RELEASE = "vllm", vllm.__version__.split("+")[0]
_AXES = [{"name": name, "size": 1} for name in ("tp", "pp", "dp", "replicas")]
_REQUIRE = [{"that": "ep == 1 || ep == tp * dp", "says": "ep must be 1 or tp * dp"}]
#: Engines are built in the config's dtype, whatever the checkpoint has.
DTYPE = "config"
# How vLLM spreads experts: whole ones with ep, else parts of each, over all ranks of a stage.
_OVER = {"axes": ["dp", "tp"], "combine": "flattened"}
_SPREAD: Sizes = {"tp": 2, "dp": 2, "ep": 4}
_EXPERT_SIZES: tuple[Sizes, ...] = ({"tp": 2, "ep": 2}, {"tp": 2, "dp": 2}, _SPREAD)
#: Of stages that layers do not divide (distributed/utils.py, get_pp_indices).
STAGES = {"rest": "before_last"}


def classes() -> list[str]:
  """The classes with a language model's head that both transformers and this vLLM have."""
  from vllm.model_executor.models import registry

  known = {**registry._TEXT_GENERATION_MODELS, **registry._MULTIMODAL_MODELS}
  return [name for name in all_classes() if name in known]


def layout_of(
  folder: pathlib.Path, sizes: Mapping[str, int], ranks: Sequence[int] | None = None
) -> _core.Layout:
  """What vLLM's loader leaves on ranks (None: on all), at these sizes."""
  keys: dict[str, Any] = {k: v for k, v in sizes.items() if k != "ep"}
  found = trace_vllm(
    folder,
    ep=sizes.get("ep", 1) > 1,
    ranks=ranks,
    prove=proved_with_values(sizes),
    enable_prefix_caching=False,
    **keys,
  )
  return found.layout


def sight(
  folder: pathlib.Path,
  sizes: Mapping[str, int],
  model: int,
  ranks: Sequence[int] | None = None,
) -> Sight:
  return Sight.of(layout_of(folder, sizes, ranks), sizes, numbers_of(folder), model)


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
  require = [*_REQUIRE, *Stages(learned).say(), *_experts(learned, found)]
  return {"axes": _AXES, "keys": [{"name": "ep"}], "require": require}


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
        cut["when"] = "ep == 1 || dp == 1 || tp == 1"
