# SPDX-License-Identifier: Apache-2.0
"""Each architecture against transformers' own class: names, shapes, dtypes, and what it can load."""

import json

import pytest
import safetensors
import safetensors.torch
import transformers

import checkpoints
import program

# Router biases are added by hand to one of them; no config.json speaks of those.
NAMES = sorted(set(checkpoints.SPECS) - {"qwen3-moe-10"})
MTP = {"deepseek": 2, "deepseek-noq": 1, "glm": 1, "qwen3-next": 1, "nemotron": 2}


def described(folder):
  """name -> (dtype, shape) of all tensors of a folder."""
  tensors = {}
  for path in sorted(folder.glob("*.safetensors")):
    with safetensors.safe_open(path, framework="pt") as file:
      for name in file.keys():
        part = file.get_slice(name)
        tensors[name] = (part.get_dtype(), part.get_shape())
  return tensors


def inspected(model):
  done = program.run("inspect", model, "--json")
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def changed(folder, target, change):
  """A copy of a checkpoint of one file after `change(tensors)`."""
  target.mkdir()
  (target / "config.json").write_text((folder / "config.json").read_text())
  tensors = safetensors.torch.load_file(folder / "model.safetensors")
  change(tensors)
  safetensors.torch.save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
  return target


@pytest.mark.parametrize("name", NAMES)
def test_the_tensors_are_those_of_transformers(name, checkpoint, tmp_path):
  folder, model = checkpoint(name)
  report = inspected(folder)
  assert report["architecture"] == checkpoints.config_of(folder)["architectures"][0]
  assert report["tensors"] == len(model.tensors)
  out = program.convert(folder, tmp_path / "out", "hf", "hf")
  assert described(out) == described(folder)


@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_what_synth_writes(name, checkpoint, tmp_path):
  folder, _ = checkpoint(name)
  out = tmp_path / "synth"
  done = program.run("synth", folder / "config.json", out)
  assert done.returncode == 0, done.stderr
  written = described(out)
  assert {n: t for n, t in written.items() if not n.startswith("mtp.")} == described(folder)
  model, loading = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
  assert not any(loading.values()), loading
  assert type(model).__name__ == checkpoints.config_of(folder)["architectures"][0]


@pytest.mark.parametrize("name", MTP)
def test_modules_for_multi_token_prediction_are_kept(name, checkpoint, tmp_path):
  folder, model = checkpoint(name, mtp=MTP[name])
  plain, _ = checkpoint(name)
  assert len(described(folder)) > len(described(plain))
  assert inspected(folder)["architecture"]
  out = program.convert(folder, tmp_path / "out", "hf", "hf:shards=2")
  home = program.convert(out, tmp_path / "home", "hf:shards=2", "hf")
  assert described(home) == described(folder)
  tensors = safetensors.torch.load_file(home / "model.safetensors")
  for tensor, expected in safetensors.torch.load_file(folder / "model.safetensors").items():
    assert tensors[tensor].equal(expected), tensor


@pytest.mark.parametrize("name", MTP)
def test_synth_writes_modules_for_multi_token_prediction(name, checkpoint, tmp_path):
  folder, _ = checkpoint(name, mtp=MTP[name])
  out = tmp_path / "synth"
  done = program.run("synth", folder / "config.json", out)
  assert done.returncode == 0, done.stderr
  assert described(out) == described(folder)
  # Copies are equal to their originals, or this would be refused.
  program.convert(out, tmp_path / "ranks", "hf", "hf:shards=2")


@pytest.mark.parametrize("name", MTP)
def test_a_config_may_speak_of_modules_that_are_not_there(name, checkpoint, tmp_path):
  folder, _ = checkpoint(name)
  copy = changed(folder, tmp_path / "copy", lambda tensors: None)
  config = checkpoints.config_of(copy) | {"num_nextn_predict_layers": MTP[name]}
  (copy / "config.json").write_text(json.dumps(config))
  out = program.convert(copy, tmp_path / "out", "hf", "hf")
  assert described(out) == described(folder)


@pytest.mark.parametrize("name", ["deepseek", "glm"])
def test_modules_without_copies_of_the_embedding(name, checkpoint, tmp_path):
  folder, _ = checkpoint(name, mtp=1)

  def without_copies(tensors):
    for tensor in [n for n in tensors if n.endswith(("4.embed_tokens.weight", "head.head.weight"))]:
      del tensors[tensor]

  copy = changed(folder, tmp_path / "copy", without_copies)
  assert len(described(copy)) == len(described(folder)) - 2
  out = program.convert(copy, tmp_path / "out", "hf", "hf")
  assert described(out) == described(copy)


def test_a_copy_that_differs_is_refused(checkpoint, tmp_path):
  folder, _ = checkpoint("deepseek", mtp=1)
  name = "model.layers.4.shared_head.head.weight"

  def another_head(tensors):
    tensors[name] = tensors[name] + 1

  copy = changed(folder, tmp_path / "copy", another_head)
  done = program.run("convert", copy, tmp_path / "out", "--from", "hf", "--to", "megatron:tp=1")
  assert done.returncode == 1
  assert f"'{name}' is stored and differs from 'lm_head.weight'" in done.stderr


def test_a_part_of_a_module_is_refused(checkpoint, tmp_path):
  folder, _ = checkpoint("glm", mtp=1)

  def lost(tensors):
    del tensors["model.layers.4.eh_proj.weight"]

  copy = changed(folder, tmp_path / "copy", lost)
  done = program.run("convert", copy, tmp_path / "out", "--from", "hf", "--to", "hf")
  assert done.returncode == 1
  assert "tensor 'model.layers.4.eh_proj.weight' is missing" in done.stderr


def test_a_quantised_config_is_used_alone_and_is_left_over_beside_plain_weights(checkpoint, tmp_path):
  folder, _ = checkpoint("deepseek")
  copy = changed(folder, tmp_path / "copy", lambda tensors: None)
  config = checkpoints.config_of(copy) | {"quantization_config": {"quant_method": "fp8"}}
  (copy / "config.json").write_text(json.dumps(config))
  done = program.run("convert", copy, tmp_path / "out", "--from", "hf", "--to", "megatron:tp=1")
  assert done.returncode == 0
  assert '"fp8", but all tensors are plain' in done.stdout
  assert "quantization_config" not in checkpoints.config_of(tmp_path / "out")
  assert inspected(copy / "config.json")["quantization"] == "fp8"
  out = tmp_path / "synth"
  assert program.run("synth", copy / "config.json", out).returncode == 0
  assert "quantization_config" not in checkpoints.config_of(out)
  assert inspected(out)["architecture"] == "DeepseekV3ForCausalLM"
