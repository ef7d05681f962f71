# SPDX-License-Identifier: Apache-2.0
"""Teaches what Megatron-Core's modules hold, as Megatron-Bridge builds and loads them."""

import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations as pairs
from typing import Any

import reshard
from reshard import _core
from reshard.learn import megatron_world as world  # before anything of megatron
from reshard.learn.engines import LAYERS
from reshard.learn.fitting.apart import is_index, say_apart, taken_apart
from reshard.learn.fitting.evidence import Held, Sight, Unfit, filled, numbers_in, skeleton
from reshard.learn.fitting.fit import Seen
from reshard.learn.fitting.kinds import Rule, is_of, wildcards
from reshard.learn.fitting.turns import Turns, merged, straightened, turns_of
from reshard.learn.learner import TIED, TIES, Learned, NoCard, Row, Sizes
from reshard.learn.megatron_shards import shards
from reshard.learn.models.bases import MEGATRON as BASES
from reshard.learn.models.configs import aliases_of, defaults_of, numbers_of, tied_names
from reshard.learn.shards import Tensors, check_shards, random_tensors
from reshard.live._bridge import composed
from reshard.live._megatron import of_descriptions
from reshard.live._modules import held_by, plain, values_of
from reshard.live._parts import Held as PartHeld

from megatron.bridge import AutoBridge  # isort: skip
from megatron.bridge.models.conversion.model_bridge import get_model_bridge  # isort: skip
from megatron.bridge.models.model_provider import _apply_mixed_precision_wrapper  # isort: skip
from megatron.core.transformer.module import Float16Module  # isort: skip

__all__ = [
  "DTYPE", "FRAMEWORK", "RELEASE", "SEEN_AT", "aliases_of", "classes", "defaults_of", "finish", "layout_of", "numbers_of", "rows",
  "sight", "tied_names",
]  # fmt: skip

FRAMEWORK, RELEASE = "megatron", importlib.metadata.version("megatron-bridge")
SEEN_AT: tuple[Sizes, ...] = ({}, {"tp": 2}, {"tp": 4})
#: Megatron-Bridge builds modules in the dtype of the config.
DTYPE = "config"
_AXES = [
  *({"name": name, "size": 1} for name in ("tp", "cp", "dp", "pp")),
  *({"name": name, "size": 1, "mesh": "experts"} for name in ("etp", "ep")),
  {"name": "edp", "size": "tp * cp * dp / (etp * ep)", "mesh": "experts"},
  {"name": "pp", "mesh": "experts"},
]  # fmt: skip
#: Megatron's names of experts end with their numbers, which are no components of names.
_EXPERT = re.compile(r"(\.experts\.linear_fc[12]\.(?:weight|bias))(\d+)$")
_EXPERT_KIND = re.compile(r"\.experts\.linear_fc[12]\.(?:weight|bias)\.#$")
_MARK = ".turns:"
_VOCABULARY = re.compile(r"(?:^|\.)(?:embedding\.word_embeddings|output_layer)\.weight$")
_MULTIPLE = 128  # Megatron's make_vocab_size_divisible_by
#: Flags of configs that are flipped each by itself.
FLAGS = ("tie_word_embeddings", "mamba_rms_norm")
_HEADS = ("num_attention_heads", "text_config.num_attention_heads")
_TOWER_HEADS = ("vision_config.num_heads", "vision_config.num_attention_heads")
_LAYERS = ".decoder.layers."


def classes() -> list[str]:
  """Those for which Megatron-Bridge has mappings."""
  return [kind if isinstance(kind, str) else kind.__name__ for kind in get_model_bridge._exact_types]


def rows(card: Mapping[str, Any]) -> list[Row]:
  """With stages and, if there are any, experts."""
  out = [Row(model, sizes, True) for model in (0, 1) for sizes in SEEN_AT]
  # A tower may give features to several layers, all of which must then be on the first stage.
  model, stages = (0, 2) if any("deepstack" in rule["match"] for rule in card["rules"]) else (1, 5)
  out += [
    Row(2, {"tp": 2}, False), Row(0, {"tp": 8}, False, may_fail=True), Row(0, {"pp": 2}, True),
    Row(model, {"pp": stages}, stages == 2), Row(2, {"tp": 2, "pp": 3}, False),
  ]  # fmt: skip
  if any(where["axis"] == "ep" for rule in card["rules"] for where in rule.get("where", ())):
    out += [
      Row(0, {"ep": 2}, False), Row(0, {"tp": 2, "ep": 4, "etp": 1}, False),
      Row(2, {"tp": 2, "ep": 3, "etp": 2}, False, (0, 1, 5)),
      Row(model, {"tp": 4, "ep": 2, "etp": 2, "pp": stages}, False, (0, 4 * stages // 2 - 1, 4 * stages - 1)),
    ]  # fmt: skip
  return out


def layout_of(folder: pathlib.Path, sizes: Sizes, ranks: Sequence[int] | None = None) -> _core.Layout:
  """What ranks (None: all) hold of a checkpoint at parallel sizes (tp, pp, ep, etp)."""
  return _layout_of(folder, tuple(sorted(sizes.items())), None if ranks is None else tuple(ranks))


# Six models are looked at several times: three, and three with other flags.
@functools.lru_cache(maxsize=64)
def _layout_of(
  folder: pathlib.Path, sizes: tuple[tuple[str, int], ...], ranks: tuple[int, ...] | None
) -> _core.Layout:
  of = dict(sizes)
  tp, pp, ep = (of.get(key, 1) for key in ("tp", "pp", "ep"))
  etp = of.get("etp", tp)
  keys = {
    "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "expert_model_parallel_size": ep,
    "expert_tensor_parallel_size": etp,
  }  # fmt: skip
  count = pp * max(tp, etp * ep)
  model = reshard.open_model(folder)
  said: list[Any] = [None] * count
  loaded: dict[int, Tensors] = {}
  for rank in range(count) if ranks is None else ranks:
    with world.rank_of(count, rank, **keys) as groups, world.OnCpu():
      modules = [_module(folder, keys, groups)]
      held = held_by(modules)
      full = _full(folder, modules, held, model)
      said[rank] = {"held": [one.pack() for one in held], "keys": values_of(modules), "full": full}
      if tp > 1 or etp > 1:
        cut = [one for one in held if not _VOCABULARY.search(one.name)]  # mappings do not pad it
        loaded[rank] = shards(_bridge(folder), modules, cut, _random_tensors(folder))
  layout = of_descriptions(said, model)
  there = Sight.of(layout, of, {}, 0).ranks if loaded else {}
  for rank, found in loaded.items():
    check_shards(there[rank].values(), found, _random_tensors(folder), rank)
  return layout


# By checkpoint, name, shape and dtype of a full tensor: its entry in a layout's file; None: it has no mapping.
_FULL: dict[tuple[Any, ...], dict[str, Any] | None] = {}


def _full(folder: pathlib.Path, modules: Any, held: Sequence[PartHeld], model: reshard.Model) -> str:
  """What a rank's full tensors are made of. Each is traced once for a checkpoint: ranks have shards of the same ones."""
  keys = [(folder, one.whole, one.shape, one.dtype) for one in held]
  unknown = [one for one, key in zip(held, keys, strict=True) if key not in _FULL]
  if unknown:
    text = composed(_bridge(folder), modules, unknown, model)
    found = {entry["name"]: entry for entry in json.loads(text)["local_tensors"]} if text else {}
    _FULL.update({(folder, one.whole, one.shape, one.dtype): found.get(plain(one.whole)) for one in unknown})
    if text:
      _FULL[folder,] = json.loads(text)
  local = {entry["name"]: entry for entry in map(_FULL.get, keys) if entry is not None}
  return json.dumps({**(_FULL[folder,] or {}), "local_tensors": list(local.values())}) if local else ""


@functools.lru_cache(maxsize=6)
def _random_tensors(folder: pathlib.Path) -> Tensors:
  return random_tensors(reshard.open_model(folder))


@functools.lru_cache(maxsize=6)
def _bridge(folder: pathlib.Path) -> Any:
  return AutoBridge.from_hf_pretrained(str(folder))


def _module(folder: pathlib.Path, keys: Mapping[str, int], groups: Any) -> Any:
  """This rank's module, as Megatron-Bridge builds it. Some are only built with sequence parallelism, which cuts no weight."""
  cut = keys["tensor_model_parallel_size"] > 1
  try:
    return _built(folder, keys, groups, cut and keys["expert_model_parallel_size"] > 1)
  except AssertionError as error:
    if not cut or "sequence_parallel" not in str(error):
      raise
    return _built(folder, keys, groups, True)


def _built(folder: pathlib.Path, keys: Mapping[str, int], groups: Any, sequence_parallel: bool) -> Any:
  provider = _bridge(folder).to_megatron_provider(load_weights=False)
  for key, value in keys.items():
    setattr(provider, key, value)
  provider.sequence_parallel = sequence_parallel
  provider.gradient_accumulation_fusion = provider.perform_initialization = False
  provider.use_cpu_initialization = provider.should_pad_vocab = True
  provider.make_vocab_size_divisible_by = _MULTIPLE
  provider.finalize()
  provider._pg_collection = groups
  module = provider.provide(groups.pp.rank() == 0, groups.pp.rank() == groups.pp.size() - 1)
  # As it is trained: all in 16 bits, a tower too, but for what stays in F32.
  half = provider.fp16 or provider.bf16
  return _apply_mixed_precision_wrapper([module], provider, Float16Module)[0] if half else module


def sight(
  folder: pathlib.Path, sizes: Sizes, model: int, ranks: Sequence[int] | None = None
) -> Sight:
  """Parts that take turns are seen one after the other: finish() says that they take turns."""
  return _sight(folder, tuple(sorted(sizes.items())), model, None if ranks is None else tuple(ranks))


@functools.lru_cache(maxsize=32)
def _sight(
  folder: pathlib.Path, sizes: tuple[tuple[str, int], ...], model: int, ranks: tuple[int, ...] | None
) -> Sight:
  of = dict(sizes)
  seen = taken_apart(Sight.of(layout_of(folder, of, ranks), of, numbers_of(folder), model))
  turns = _turns(folder)
  out: dict[int, dict[str, Held]] = {}
  for rank, held in seen.ranks.items():
    out[rank] = {}
    for name, local in held.items():
      straight = straightened(local, turns[name]) if name in turns else merged(local)
      if straight is not None:
        new = _EXPERT.sub(r"\1.\2", name) + _mark(folder, name)
        out[rank][new] = dataclasses.replace(straight, name=new)
  return dataclasses.replace(seen, ranks=out)


@functools.lru_cache(maxsize=6)
def _turns(folder: pathlib.Path) -> dict[str, Turns]:
  """By local tensor of one rank that has them all."""
  whole = taken_apart(Sight.of(layout_of(folder, {}), {}, {}, 0)).ranks[0]
  found = {name: turns_of(held) for name, held in whole.items()}
  return {name: turns for name, turns in found.items() if turns is not None}


@functools.lru_cache(maxsize=6)
def _counts(folder: pathlib.Path) -> dict[str, list[int]]:
  """By name without numbers: the numbers of turns, in ascending order."""
  found: dict[str, set[int]] = {}
  for name, turns in _turns(folder).items():
    found.setdefault(skeleton(name), set()).add(turns.count)
  return {name: sorted(counts) for name, counts in found.items()}


def _mark(folder: pathlib.Path, name: str) -> str:
  """What is put behind a name to tell kinds apart, if layers take turns of different numbers: those with other KV heads."""
  turns, counts = _turns(folder).get(name), _counts(folder).get(skeleton(name), [])
  return f"{_MARK}{'abcdefgh'[counts.index(turns.count)]}" if turns is not None and 1 < len(counts) <= 8 else ""


def finish(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
  """Says where rules hold and how their parts take turns; returns the axes, the keys and what must hold."""
  numbers = [numbers_of(folder) for folder in learned.folders]
  layers = next((key for key in LAYERS if key in numbers[0]), None)
  if layers is None:
    raise NoCard("no key of the config counts layers")
  ties = _Ties.of(learned.folders[0])
  left_out = {skeleton(name) for model in range(2) for name in learned.sight(model, {}).omitted} - ties.copies
  if left_out:
    raise NoCard(f"'{min(left_out)}' would be left out")
  for kind, rule in learned.rules:
    _take_turns(kind, rule, learned)
    for part in (rule, *rule.get("with", ())):
      for pad in part.get("pad", ()):
        pad["multiple"] = "vocab_multiple * tp" if _VOCABULARY.search(kind) else pad["multiple"]
    rule["where"] = list(_where(kind, rule, learned, learned.terms.text_of(layers)))
    if "name" in rule:
      rule["name"] = rule["name"].partition(_MARK)[0].replace("weight.$", "weight$").replace("bias.$", "bias$")
  _tell_apart(learned, found)
  if ties.tied:
    learned.rules.extend(_tied(learned, ties.say(1)))
  for kind, rule in learned.rules:
    try:
      say_apart(rule, [learned.sight(model, {}) for model in range(len(learned.folders))], learned.terms)
    except Unfit as error:
      raise NoCard(f"'{kind}': {error}") from None
  alternate = [str(rule.get("interleave", "")) for _, rule in learned.rules]
  keys = [*_HEADS, *(key for key in _TOWER_HEADS if any(key in text for text in alternate))]
  divided = [f"({key} ?? tp) % tp == 0" for key in keys if key in numbers[0]]
  require = [
    {"that": "tp * cp * dp % (etp * ep) == 0", "says": "etp * ep must divide tp * cp * dp, the ranks of a stage"},
    *({"that": that, "says": "tp must divide the number of attention heads"} for that in divided),
    *ties.require(),
  ]
  return {"axes": _AXES, "keys": [], "require": require}


@dataclasses.dataclass(frozen=True)
class _Ties:
  """Whether a model's head is tied to its embeddings.

  key        of the config; None: the class has none
  tied       its value, 0 or 1
  otherwise  that of a config without the key
  copies     tensors that a checkpoint may store although they are tied to others
  """

  key: str | None
  tied: int
  otherwise: int
  copies: frozenset[str]

  @classmethod
  def of(cls, folder: pathlib.Path) -> "_Ties":
    numbers, said = numbers_of(folder), json.loads((folder / "config.json").read_text())
    key = next((key for key in TIES if key in numbers), None)
    if key is None:
      return cls(None, 0, 0, frozenset())
    otherwise = defaults_of(said["model_type"]).get(key, numbers[key])
    copies = tied_names(said["architectures"][0]) if numbers[key] else frozenset[str]()
    return cls(key, numbers[key], otherwise, copies)

  def say(self, tied: int) -> str:
    return f"({self.key} ?? {self.otherwise}) == {tied}"

  def require(self) -> Iterator[dict[str, str]]:
    """Until models whose embeddings are otherwise have been seen, too."""
    if self.key is not None:
      says = f"pp must be 1: {TIED}" + ("tied" if self.tied else "not tied")
      yield {"that": f"pp == 1 || {self.say(self.tied)}", "says": says}


def _take_turns(kind: str, rule: Rule, learned: Learned) -> None:
  """The parts of a rule alternate, and are cut as one."""
  counts: list[int] = []
  for folder in learned.folders:
    here = {t.count for name, t in _turns(folder).items() if skeleton(name + _mark(folder, name)) == skeleton(kind)}
    counts += here if len(here) == 1 else {0: [1]}.get(len(here), [])
  if len(counts) != len(learned.folders):
    raise NoCard(f"'{kind}': its parts do not take the same number of turns in all layers")
  if set(counts) == {1}:
    return
  text = next((text for text, values in learned.terms.counts() if list(values) == counts), None)
  if text is None:
    raise NoCard(f"'{kind}': no key of the config counts its turns: {', '.join(map(str, counts))}")
  cuts = [part.pop("cuts", []) for part in (rule, *rule.get("with", ()))]
  if {str([cut["dim"] for cut in of]) for of in cuts} - {"[0]"}:
    raise NoCard(f"'{kind}': its parts take turns and are not cut by rows")
  rule.update({"together": True, "interleave": text, "cuts": [{"dim": 0, "axes": ["tp"], "even": True}]})


def _tell_apart(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> None:
  """Of rules for the same tensors, such as the norms before dense layers and before experts: says beside which tensor each
  holds. One for which there is none follows the others."""
  rules: dict[str, list[tuple[str, Rule]]] = {}
  for kind, rule in learned.rules:
    rules.setdefault(rule["match"], []).append((kind, rule))
  for match, several in rules.items():
    places = [_numbers_of(found[kind], skeleton(match)) for kind, _ in several]
    if len(several) < 2 or any(a.get(m, set()) & b.get(m, set()) for a, b in pairs(places, 2) for m in a):
      continue
    rest: list[tuple[str, Rule]] = []
    for i, (kind, rule) in enumerate(several):
      for part in (rule, *rule.get("with", ())):
        part.pop("shared", None)
      others = [at for k, at in enumerate(places) if k != i]
      if (beside := _beside(skeleton(match), places[i], others, learned)) is not None:
        rule["beside"] = beside
      else:
        rest.append((kind, rule))
    if len(rest) > 1:
      raise NoCard(f"'{rest[0][0]}': no tensor of the model tells where it holds '{match}'")
    learned.rules[:] = [pair for pair in learned.rules if all(pair[1] is not rule for _, rule in rest)] + rest


Places = Mapping[int, set[tuple[int, ...]]]  # by model: the numbers of tensors


def _numbers_of(seen: Sequence[Seen], match: str) -> Places:
  out: dict[int, set[tuple[int, ...]]] = {}
  for one in seen:
    for held in one.ranks.values():
      out.setdefault(one.sight.model, set()).update(numbers_in(p.tensor) for p in held.pieces if skeleton(p.tensor) == match)
  return out


def _beside(match: str, own: Places, others: Sequence[Places], learned: Learned) -> str | None:
  candidates: dict[str, dict[int, set[tuple[int, ...]]]] = {}
  for model in own:
    for name in filter(lambda name: not is_index(name), learned.sight(model, {}).shapes):
      candidates.setdefault(skeleton(name), {}).setdefault(model, set()).add(numbers_in(name))
  for name, there in sorted(candidates.items(), key=lambda pair: (len(pair[0]), pair[0])):
    if name.count("#") == match.count("#") and all(
      own[m] <= there.get(m, set()) and not any(there.get(m, set()) & other.get(m, set()) for other in others) for m in own
    ):
      return filled(name, [f"${i + 1}" for i in range(name.count("#"))])
  return None


def _where(kind: str, rule: Rule, learned: Learned, layers: str) -> Iterator[dict[str, Any]]:
  """The stage, of layers or as seen at two stages, and the rank of an expert. A guess: it is predicted."""
  at, two = wildcards(rule), learned.sight(0, {"pp": 2}).ranks
  before, _, after = f".{kind}".partition(_LAYERS)
  if after.startswith("#") and any(f".{name}".startswith(before + _LAYERS) for name in two[1]):
    yield {"axis": "pp", "number": at.index(before.count("#")) + 1, "of": layers, "renumber": True}
  else:  # a tower has layers, too, all of them on one stage
    stages = [stage for stage, held in two.items() if any(is_of(kind, name) for name in held)]
    if not stages:
      raise NoCard(f"'{kind}' is on no stage of two")
    yield {"axis": "pp", "at": -stages[0], **({"or_last": True} if len(stages) > 1 else {})}
  if _EXPERT_KIND.search(kind):
    experts = _experts(kind, learned)
    yield {"axis": "ep", "number": at.index(kind.count("#") - 1) + 1, "of": experts, "renumber": True}
    for part in (rule, *rule.get("with", ())):
      for cut in part.get("cuts", ()):
        cut["axes"] = ["etp"]


def _experts(kind: str, learned: Learned) -> str:
  counts = []
  for model in range(len(learned.folders)):
    names = {name for name in learned.sight(model, {}).ranks[0] if skeleton(name) == kind}
    counts.append(1 + max(int(name.rpartition(".")[2]) for name in names))
  try:
    return learned.terms.of(counts, [0] * len(counts))
  except Unfit as error:
    raise NoCard(f"'{kind}': its experts: {error}") from None


def _tied(learned: Learned, ties: str) -> Iterator[tuple[str, Rule]]:
  """The head that is tied to the embeddings: the last stage has its own copy of these, if it is not the first."""
  alone = learned.sight(0, {}).ranks[0]
  for name, held in learned.sight(0, {"pp": 2}).ranks[1].items():
    if not _VOCABULARY.search(name) or name in alone:
      continue
    of = [rule for _, rule in learned.rules if rule["match"] in {piece.tensor for piece in held.pieces}]
    if len(of) != 1:
      raise NoCard(f"'{name}' is on the last stage alone")
    copy = {**of[0], "shared": True, "name": name, "when": f"pp > 1 && {ties}", "where": [{"axis": "pp", "at": -1}]}
    yield name, copy
