# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tests/vllm/models.py, and what the program and vLLM make of them."""

import json
import os
import re
import subprocess

import pytest
import torch
import world
from models import MODELS
from safetensors.torch import load_file

# What vLLM creates for activations and drops or fills after the load: not weights.
_ACTIVATIONS = re.compile(r"\.([qkv]|prob)_(scale|zero_point)$|input_(global_)?scale$")


def reshard(*arguments):
  """What the program says; a refusal fails the test with its own words."""
  command = [os.environ["RESHARD_BIN"], *map(str, arguments)]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stderr}"
  return done.stdout


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


def difference(name, vllm, ours):
  if vllm is None or ours is None:
    return f"{name}: only {'vLLM' if ours is None else 'reshard'} has it"
  if (vllm.dtype, vllm.shape) != (ours.dtype, ours.shape):
    return f"{name}: {vllm.dtype} {list(vllm.shape)} in vLLM, {ours.dtype} {list(ours.shape)} here"
  same = torch.equal(*(t.contiguous().flatten().view(torch.uint8) for t in (vllm, ours)))
  return None if same else f"{name}: other bytes"


def wrong_on(rank, vllm, ours, by_device):
  """(what differs, how many parameters were compared) of one rank."""
  names = [n for n in sorted(vllm.keys() | ours.keys()) if n in ours or not _ACTIVATIONS.search(n)]
  wrong = []
  for name in names:
    held = vllm.get(name)
    if held is not None and name in ours and by_device and re.search(by_device, name):
      held = held.to(ours[name].dtype)
    if said := difference(name, held, ours.get(name)):
      wrong.append(f"rank {rank}: {said}")
  return wrong, len(names)


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
