# SPDX-License-Identifier: Apache-2.0
"""Protects: "traced:ENGINE" is the layout that the engine's own loader gives, traced in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import reshard  # noqa: E402

PROGRAM = os.environ.get("RESHARD_BIN", "reshard")


def checkpoint(folder, of=None, **sizes):
  """A tiny model of a class that has no family, as transformers writes it."""
  sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, vocab_size=96, pad_token_id=0) | sizes  # fmt: skip
  config = (of or transformers.Olmo2Config)(**sizes)
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
  model.save_pretrained(folder)
  return model


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", str(tmp_path / "kept"))
  return tmp_path / "kept"


def test_a_traced_layout_is_that_of_the_engines_loader_and_is_kept(tmp_path, cache, monkeypatch):
  module = checkpoint(tmp_path / "model")
  model = reshard.open_model(tmp_path / "model")
  layout = reshard.layout("traced:transformers", model)
  assert layout.name == "traced:transformers" and list(layout.ranks) == [0]
  held = {t.name: (t.shape, t.dtype.name) for t in layout.local(0)}
  state = {n: (tuple(t.shape), "bf16") for n, t in module.state_dict().items()}
  assert held == state
  assert reshard.plan(reshard.layout("hf", model), layout).check() is None

  kept = sorted(cache.iterdir())
  # A Python without torch would fail now, had it to trace.
  shadow = tmp_path / "shadow" / "torch.py"
  shadow.parent.mkdir()
  shadow.write_text("raise ImportError('torch was imported')")
  monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shadow.parent), os.environ.get("PYTHONPATH", "")]))
  assert reshard.layout("traced:transformers", model) == layout
  assert sorted(cache.iterdir()) == kept
  with pytest.raises(reshard.UnsupportedError, match="torch was imported"):
    reshard.layout("traced:transformers,dtype=float32", model)


def test_experts_are_stacked_as_the_modules_have_them(tmp_path, cache):
  """The loader of transformers 5 stacks what files have one by one."""
  checkpoint(tmp_path / "model", transformers.OlmoeConfig, num_experts=4, num_experts_per_tok=2)
  model = reshard.open_model(tmp_path / "model")
  held = {t.name: t.shape for t in reshard.layout("traced:transformers", model).local(0)}
  assert held["model.layers.0.mlp.experts.gate_up_proj"] == (4, 96, 32)


def test_a_dtype_is_that_of_the_module(tmp_path, cache):
  checkpoint(tmp_path / "model")
  model = reshard.open_model(tmp_path / "model")
  layout = reshard.layout("traced:transformers,dtype=float32", model)
  assert {t.dtype.name for t in layout.local(0)} == {"f32"}
  with pytest.raises(reshard.InvalidArgumentError, match="dtype=int8 must be one of"):
    reshard.layout("traced:transformers,dtype=int8", model)


def test_a_config_alone_is_enough(tmp_path, cache):
  checkpoint(tmp_path / "model", transformers.LlamaConfig)
  (tmp_path / "only.json").write_text((tmp_path / "model" / "config.json").read_text())
  layout = reshard.layout("traced:transformers", reshard.open_model(tmp_path / "only.json"))
  assert "model.layers.1.mlp.up_proj.weight" in layout.slots_of(0)


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("traced:transformers,tp=2", "unknown key 'tp'; known are dtype and offset"),
    ("traced:transformer", "did you mean 'transformers'"),
    ("traced", "names its engine first"),
  ],
)
def test_a_wrong_notation_says_what_is_right(tmp_path, cache, text, said):
  checkpoint(tmp_path / "model")
  with pytest.raises(reshard.InvalidArgumentError, match=said):
    reshard.layout(text, reshard.open_model(tmp_path / "model"))


def test_an_engine_that_is_not_there_is_named(tmp_path, cache):
  try:
    import vllm  # noqa: F401
  except ImportError:
    pass
  else:
    pytest.skip("vllm is there")
  checkpoint(tmp_path / "model")
  with pytest.raises(reshard.UnsupportedError, match=r"has no package vllm; RESHARD_PYTHON names the Python"):
    reshard.layout("traced:vllm,tp=2", reshard.open_model(tmp_path / "model"))


def test_a_model_that_the_engine_lacks_is_refused_in_a_line(tmp_path, cache):
  checkpoint(tmp_path / "model")
  path = tmp_path / "model" / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["New"], "model_type": "new"}))
  with pytest.raises(reshard.Error, match=r"new") as refused:
    reshard.layout("traced:transformers", reshard.open_model(tmp_path / "model"))
  assert "\n" not in str(refused.value)


def run(*arguments, **environment):
  return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                        env=os.environ | {"RESHARD_PYTHON": sys.executable} | environment)  # fmt: skip


def test_the_program_converts_and_reads_back_without_the_engine(tmp_path, cache):
  checkpoint(tmp_path / "model", transformers.OlmoeConfig, num_experts=4, num_experts_per_tok=2)
  made = run("convert", tmp_path / "model", tmp_path / "ranks", "--to", "traced:transformers")
  assert made.returncode == 0, made.stderr
  path = tmp_path / "ranks" / "reshard.json"
  assert json.loads(path.read_text())["layout"] == "explicit:explicit.json"
  assert (tmp_path / "ranks" / "explicit.json").exists()
  back = run("convert", tmp_path / "ranks", tmp_path / "back", "--to", "hf", RESHARD_PYTHON="/nowhere")
  assert back.returncode == 0, back.stderr
  same = run("verify", tmp_path / "model", tmp_path / "back")
  assert same.returncode == 0, same.stdout + same.stderr

  # A checkpoint names no engine: a downloaded folder must not start a process.
  path.write_text(path.read_text().replace("explicit:explicit.json", "traced:transformers"))
  refused = run("verify", tmp_path / "model", tmp_path / "ranks")
  assert refused.returncode != 0 and "names it explicit:FILE" in refused.stderr
