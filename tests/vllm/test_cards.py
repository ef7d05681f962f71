# SPDX-License-Identifier: Apache-2.0
"""Layout cards that ship say what this vLLM holds: of a sample, at sizes and of models that learning never saw.
`make models-test` proves all of them."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

reshard = pytest.importorskip("reshard")

import transformers  # noqa: E402
from reshard.learn import vllm as teacher  # noqa: E402
from reshard.learn.__main__ import checkpoint  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402

CARDS = sorted(p.stem for p in (pathlib.Path(__file__).parents[2] / "examples/cards/vllm").glob("*.json"))
SAMPLE = [name for name in ("OlmoeForCausalLM", "GPT2LMHeadModel", "Exaone4ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV32ForCausalLM", "Phi3ForCausalLM", "BloomForCausalLM") if name in CARDS]
# Other sizes than those of the three models with which cards are learned and proved.
OTHER = tiny.Sizes(24, 8, 16, 192, 384, 3, 700, 12, 144)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", "off")


def test_the_commands_of_the_page_work(tmp_path):
  page = (pathlib.Path(__file__).parents[2] / "docs/cards.md").read_text()
  checkpoint(tmp_path / "olmoe", "OlmoeForCausalLM", OTHER)
  commands = [shlex.split(c, comments=True) for c in re.findall(r"^reshard (.*)$", page, re.M)]
  assert [c[0] for c in commands] == ["models", "models", "inspect", "convert", "inspect"]
  for command in commands:
    told = [word.replace("/models/", f"{tmp_path}/") for word in command]
    done = subprocess.run([os.environ["RESHARD_BIN"], *told], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
  learning = next(c for c in re.findall(r"^python (.*?) *$", page, re.M) if c.endswith("OlmoeForCausalLM     # one"))
  told = [word.replace("examples/cards/vllm", str(tmp_path)) for word in shlex.split(learning, comments=True)]
  done = subprocess.run([sys.executable, *told], capture_output=True, text=True)
  assert done.returncode == 0 and done.stdout.endswith("1 of 1\n"), done.stdout + done.stderr
  shipped = json.loads((pathlib.Path(__file__).parents[2] / "examples/cards/vllm/OlmoeForCausalLM.json").read_text())
  assert json.loads((tmp_path / "OlmoeForCausalLM.json").read_text()) == shipped


def test_there_are_cards():
  assert len(CARDS) > 35 and len(SAMPLE) > 2


def test_a_quantised_checkpoint_of_a_class_with_a_card_is_what_vllm_holds(tmp_path):
  """The files say which tensors are quantised, the card how ranks hold them."""
  sizes = tiny.Sizes(8, 8, 32, 256, 256, 3, 700, 4, 256)
  plain = checkpoint(tmp_path / "plain", "OlmoeForCausalLM", sizes)
  command = [os.environ["RESHARD_BIN"], "convert", plain, tmp_path / "fp8", "--to", "hf:quant=fp8_block,quant_method=fp8"]
  subprocess.run(command, check=True, capture_output=True)
  model = reshard.open_model(tmp_path / "fp8")
  theirs = reshard.layout("traced:vllm,tp=2", model)
  ours = reshard.layout("vllm:tp=2,quant=fp8_block,quant_method=fp8,quant_grid=tensor", model)
  assert theirs.quantised and reshard.diff(ours, theirs) == []
  with pytest.raises(reshard.UnsupportedError, match="card of olmoe does not say which tensors the engine quantises"):
    reshard.layout("vllm:tp=2,quant=fp8_block", reshard.open_model(plain))


@pytest.mark.parametrize("name", SAMPLE)
def test_the_notation_is_what_vllm_holds(name, tmp_path):
  folder = checkpoint(tmp_path / "model", name, OTHER)
  model = reshard.open_model(folder)
  sizes = [dict(tp=4), dict(tp=2, pp=2)] + ([dict(tp=4, ep=4)] if "Moe" in name or name.startswith("Olmoe") else [])
  for one in sizes:
    if one.get("pp", 1) > 1 and transformers.AutoConfig.from_pretrained(folder).tie_word_embeddings:
      continue
    theirs = teacher.layout_of(folder, one)
    ours = reshard.layout("vllm:" + ",".join(f"{k}={v}" for k, v in one.items()), model)
    assert reshard.diff(theirs, ours) == []
