# SPDX-License-Identifier: Apache-2.0
"""Protects: a model and its draft model are told as one, although their tensors have the same names."""

import pytest
import reshard
from reshard import _manifest as manifest
from reshard.engines.parts import DRAFT, Draft, Parts
from reshard.engines.trainer import layouts_of


def _layout(text, layers):
  return reshard.layout(text, reshard.open_model("qwen3-4b", layers=layers))


def _fragments(layout, prefix=""):
  return {
    (rank, prefix + t.name): sorted((prefix + f.tensor, str(f.box), f.offset) for f in t.fragments)
    for rank in layout.ranks
    for t in layout.local(rank)
  }


def test_a_draft_model_has_names_of_its_own():
  target, draft = _layout("megatron:tp=2", 3), _layout("fsdp:shard=2", 1)
  parts = Parts(target, (), None, None, Draft(draft, {t.name: "draft's" for t in draft.local(1)}))
  messages = [{"holds": parts.holds(target, rank), "quant": None} for rank in (0, 1)]
  messages.append({"holds": [], "quant": None})
  model = manifest.model_of(parts.table)
  source, (engine,) = layouts_of(model, messages, 2)
  assert _fragments(source) == _fragments(target) | _fragments(draft, DRAFT)
  assert list(engine.ranks) == [2] and engine.local(2) == []
  mine = parts.tensors({t.name: "mine" for t in target.local(1)}, source, 1)
  assert {name for name, whose in mine.items() if whose == "draft's"} == {DRAFT + t.name for t in draft.local(1)}
  assert len(mine) == len(target.local(1)) + len(draft.local(1))


def test_only_may_name_a_model():
  target, draft = _layout("hf", 2), _layout("hf", 1)
  given = Draft(draft, {})
  drafts = len(draft.model.tensors)
  assert len(Parts(target, (), None, None, given).table) == len(target.model.tensors) + drafts
  alone = Parts(target, "draft:*", None, None, given)
  assert len(alone.table) == drafts and alone.draft_config
  without = Parts(target, ["model.*"], None, None, given)
  assert without.draft_config is None and len(without.table) == len(target.model.tensors)
  assert alone.wanted is without.wanted is None
  with pytest.raises(reshard.UnsupportedError, match="must be plain"):
    Parts(target, (), None, None, Draft(_layout("hf:quant=fp8_block", 1), {}))


def test_only_may_name_tensors_of_models_of_which_workers_learn_all():
  target, draft = _layout("hf", 2), _layout("hf", 1)
  both = len(target.model.tensors) + len(draft.model.tensors)
  parts = Parts(target, ["draft:model.norm.weight", "model.layers.1.*_proj.weight"], None, None, Draft(draft, {}))
  assert len(parts.table) == both and parts.draft_config
  wanted = [parts.table[i][0] for i in parts.wanted]
  assert "draft:model.norm.weight" in wanted and "model.layers.1.self_attn.q_proj.weight" in wanted
  assert len(wanted) == 1 + 7
  alone = Parts(target, "model.norm.weight", None, None)
  assert len(alone.table) == len(target.model.tensors)
  assert [alone.table[i][0] for i in alone.wanted] == ["model.norm.weight"]
  with pytest.raises(reshard.InvalidArgumentError, match="no tensor's name matches 'model.layers.2"):
    Parts(target, "model.layers.2.*", None, None)


def test_a_pattern_that_matches_nothing_that_workers_take_is_named():
  target = _layout("hf", 2)
  parts = Parts(target, ["model.layers.0.*", "model.norm.*"], None, None)
  numbers = {name: i for i, (name, *_) in enumerate(parts.table)}
  first = numbers["model.layers.0.mlp.up_proj.weight"]
  parts.check_taken({first, numbers["model.norm.weight"]})
  with pytest.raises(reshard.InvalidArgumentError, match="the engine has no tensor that matches 'model.norm"):
    parts.check_taken({first})


def test_a_local_tensor_of_two_models_is_padded_where_it_holds_the_other():
  model = reshard.Model.from_tensors("both", {"a": ((4,), "float32"), "b": ((2,), "float32")})
  builder = reshard.LayoutBuilder("fused", model)
  parts = [reshard.PlacedBox("a", [(0, 4)], [0]), reshard.PlacedBox("b", [(0, 2)], [4])]
  builder.add([0], "ab", [6], "float32", parts=parts)
  table = manifest.table_of(model, {"b"})
  descriptions = {0: manifest.describe(builder.finish(), 0, table)}
  (local,) = manifest.build("part", manifest.model_of(table), descriptions).local(0)
  assert local.padding == 4 and [(f.tensor, f.offset) for f in local.fragments] == [("b", 4)]
