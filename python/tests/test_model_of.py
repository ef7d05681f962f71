# SPDX-License-Identifier: Apache-2.0
"""Protects: a model without weights has the names, shapes and dtypes that transformers itself saves, of classes
that reshard knows and of others, and is planned as the checkpoint is."""

import json
import os
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import reshard  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402

PROGRAM = os.environ.get("RESHARD_BIN", "reshard")
CLASSES = [
  "LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "Gemma3ForCausalLM",  # with a family
  "OlmoeForCausalLM", "Lfm2MoeForCausalLM", "Qwen3_5MoeForCausalLM", "MiniMaxM2ForCausalLM", "FalconH1ForCausalLM",
  "Qwen2_5_VLForConditionalGeneration", "Mistral3ForConditionalGeneration",
]  # fmt: skip


def saved(folder, config):
  torch.manual_seed(0)
  module = getattr(transformers, config.architectures[0])._from_config(config, dtype=torch.bfloat16)
  module.save_pretrained(folder)
  return folder


def config_of(name):
  config = tiny.config_of(name, tiny.SEEN[0])
  config.architectures = [name]
  return config


def said_of(model):
  return sorted((t.name, str(t.dtype), tuple(t.shape)) for t in model.tensors)


@pytest.mark.parametrize("name", CLASSES)
def test_it_has_the_tensors_that_transformers_saves(name, tmp_path):
  folder = saved(tmp_path / "hf", config_of(name))
  model = reshard.model_of(folder, tmp_path / "a.model.json")
  whole = reshard.open_model(folder)
  assert said_of(model) == said_of(whole)
  assert said_of(reshard.open_model(tmp_path / "a.model.json")) == said_of(whole)
  for layout in ("hf", "fsdp:shard=3", "vllm:tp=2"):
    assert reshard.diff(reshard.layout(layout, model), reshard.layout(layout, whole)) == [], layout


def test_configs_come_in_every_form_and_commands_take_the_file(tmp_path):
  config = config_of("OlmoeForCausalLM")
  path = tmp_path / "olmoe.model.json"
  first = said_of(reshard.model_of(config, path))
  said = config.to_dict() | {"architectures": ["OlmoeForCausalLM"]}
  (tmp_path / "config.json").write_text(json.dumps(said))
  for form in (said, tmp_path / "config.json", tmp_path, str(tmp_path)):
    assert said_of(reshard.model_of(form, tmp_path / "again.model.json")) == first
  done = subprocess.run(
    [PROGRAM, "plan", "--model", path, "--from", "fsdp:shard=3", "--to", "vllm:tp=2", "--json"],
    capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout)["bytes_total"] > 0
  refused = subprocess.run([PROGRAM, "convert", path, tmp_path / "out", "--to", "hf"], capture_output=True, text=True)
  assert refused.returncode != 0 and len(refused.stderr.strip().splitlines()) == 1
  layers = subprocess.run(
    [PROGRAM, "plan", "--model", path, "--layers", "2", "--from", "hf", "--to", "hf"], capture_output=True, text=True
  )
  assert layers.returncode != 0 and "lists its tensors" in layers.stderr


def test_what_is_no_config_is_refused_in_one_line(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(reshard.InvalidArgumentError, match="has no model_type"):
    reshard.model_of(tmp_path, tmp_path / "x.model.json")
  with pytest.raises(reshard.InvalidArgumentError, match="is no config.json"):
    reshard.model_of(tmp_path / "nowhere.json", tmp_path / "x.model.json")
  with pytest.raises(reshard.UnsupportedError, match="cannot build this config"):
    reshard.model_of({"model_type": "nobody_knows"}, tmp_path / "x.model.json")
  assert not (tmp_path / "x.model.json").exists()
  path = tmp_path / "bad.model.json"
  for tensors in ([], "x", [{"name": "a"}], [{"name": "a", "dtype": "BF16", "shape": [-1]}], [{"name": "a", "dtype": "BF16", "shape": [1]}] * 2):
    path.write_text(json.dumps({"model_type": "x", "reshard_tensors": tensors}))
    with pytest.raises(reshard.Error) as error:
      reshard.open_model(path)
    assert len(str(error.value).splitlines()) == 1 and "bad.model.json" in str(error.value)
