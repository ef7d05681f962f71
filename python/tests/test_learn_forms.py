# SPDX-License-Identifier: Apache-2.0
"""Protects: cards are learned from checkpoints as they are published, also where transformers writes them otherwise."""

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from reshard.learn import NoCard  # noqa: E402

BF16 = torch.bfloat16


def test_a_nested_tower_has_the_names_of_published_checkpoints(tmp_path):
  transformers = pytest.importorskip("transformers")
  from reshard.learn.models import published, tiny

  config = tiny.config_of("Gemma3ForConditionalGeneration", tiny.SEEN[0])
  model = transformers.Gemma3ForConditionalGeneration._from_config(config, dtype=BF16)
  model.save_pretrained(tmp_path)
  written = safetensors_torch.load_file(tmp_path / "model.safetensors")
  published.publish(model, tmp_path)
  named = safetensors_torch.load_file(tmp_path / "model.safetensors")
  changed = {name: name.replace("vision_tower.", "vision_tower.vision_model.") for name in written}
  assert named.keys() == set(changed.values()) and "vision_tower.vision_model.post_layernorm.weight" in named
  assert all(torch.equal(named[changed[name]], t) for name, t in written.items())
  published.publish(model, tmp_path)  # has the names already
  assert safetensors_torch.load_file(tmp_path / "model.safetensors").keys() == named.keys()
  loaded, problems = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
  assert not problems["missing_keys"] and not problems["unexpected_keys"]
  assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_towers_are_found_by_both_names():
  from reshard.learn.models.published import with_both_names

  rules = [
    {"match": "vision_tower.vision_model.layers.#.q.weight", "name": "model.vision_tower.layers.$1.q.weight"},
    {"match": "vision_tower.vision_model.*.k", "with": [{"match": "vision_tower.vision_model.*.v"}], "stack": 1},
    {"match": "language_model.norm.weight"},
  ]
  assert with_both_names(rules, {"vision_tower": "vision_model"}) == [
    rules[0],
    {"match": "vision_tower.layers.#.q.weight", "name": "model.vision_tower.layers.$1.q.weight"},
    rules[1],
    {"match": "vision_tower.*.k", "with": [{"match": "vision_tower.*.v"}], "stack": 1,
     "name": "vision_tower.vision_model.$1.k"},
    rules[2],
  ]  # fmt: skip


def test_layers_beyond_those_of_the_config_are_left_out(tmp_path):
  """Those of modules for multi-token prediction, as DeepSeek stores them."""
  from reshard.learn.learner import without_layers
  from reshard.learn.models.stored import trailing

  tensors = {"model.embed_tokens.weight": torch.zeros(7, 4, dtype=BF16), "model.norm.weight": torch.zeros(4, dtype=BF16)}
  tensors |= {f"model.layers.{i}.mlp.up_proj.weight": torch.zeros(6, 4, dtype=BF16) for i in range(3)}
  beyond = {n for n in trailing(tensors) if n not in tensors}
  assert "model.layers.3.mlp.up_proj.weight" in beyond and "model.layers.3.eh_proj.weight" in beyond
  assert all(name.startswith("model.layers.3.") for name in beyond)
  layers = {"match": "model.layers.#.mlp.up_proj.weight", "where": [{"axis": "pp", "number": 1, "of": "layers ?? 9"}]}
  rules = without_layers({"rules": [{"match": "model.*"}, layers]})
  assert rules[0] == {"match": "model.layers.#.*", "from": "layers ?? 9", "omit": True}
  with pytest.raises(NoCard, match="no rule says how many layers"):
    without_layers({"rules": [{"match": "model.*"}]})
