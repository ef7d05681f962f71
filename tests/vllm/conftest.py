# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tests/vllm/models.py, and what the program and vLLM make of them."""

import json

import pytest
import world
from models import MODELS
from ranks import reshard, wrong_on
from safetensors.torch import load_file


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
  """checkpoint(model, form="hf") -> folder: random weights, plain or quantised by the program."""
  written = {}

  def get(model, form="hf"):
    if (model, form) not in written:
      folder = tmp_path_factory.mktemp(model)
      if form == "hf":
        (folder / "config.json").write_text(json.dumps(MODELS[model]))
        reshard("synth", folder / "config.json", folder / "hf")
      else:
        reshard("convert", get(model), folder / "hf", "--to", form)
      written[model, form] = folder / "hf"
    return written[model, form]

  return get


@pytest.fixture
def compare(tmp_path):
  """compare(folder, sizes, more, by_device): every parameter of every rank, by name. `more`: keys
  of the layout; `by_device`: a pattern of names whose dtype is a matter of the device."""

  def run(folder, sizes, more="", by_device=None):
    out = tmp_path / "ranks"
    reshard("convert", folder, out, "--to", world.layout_of(sizes, more))
    config = world.engine_config(folder, sizes)
    wrong, compared = [], 0
    for entry in json.loads((out / "reshard.json").read_text())["ranks"]:
      rank = entry["rank"]
      theirs, ours = world.held_by_vllm(config, folder, rank), load_file(out / entry["file"])
      said, names = wrong_on(rank, theirs, ours, by_device)
      wrong += said
      compared += names
    assert compared > 0 and not wrong, f"{len(wrong)} of {compared}\n" + "\n".join(wrong[:20])

  return run
