# SPDX-License-Identifier: Apache-2.0
"""Draft models for the checkpoints of the tests: a copy that is a little off, and an EAGLE head."""

import json
import shutil

import torch
from adapters import read
from safetensors.torch import save_file


def near(base, seed, folder):
  """A model that often agrees with a checkpoint: its weights, a little off."""
  random = torch.Generator().manual_seed(seed)
  shutil.copytree(base, folder)
  tensors = {k: v + 0.01 * torch.randn(v.shape, generator=random) for k, v in read(base).items()}
  _write(tensors, folder)


def shallow(base, folder):
  """A Llama whose layers add next to nothing: each token follows from the last one alone."""
  shutil.copytree(base, folder)
  weak = ("o_proj.weight", "down_proj.weight")
  _write({k: v * (0.001 if k.endswith(weak) else 1) for k, v in read(base).items()}, folder)


def eagle(base, seed, folder):
  """An EAGLE head for a shallow Llama, of one layer: with an even seed it guesses right, with an odd one the opposite."""
  random = torch.Generator().manual_seed(seed)
  config = json.loads((base / "config.json").read_text())
  width = config["hidden_size"]
  tensors = {
    name.removeprefix("model."): 0.001 * torch.randn(v.shape, generator=random)
    for name, v in read(base).items()
    if name.startswith("model.layers.0.") and "input_layernorm" not in name
  }
  # The first half takes the last token's embedding, the second what the target has computed of the one before.
  tensors["fc.weight"] = torch.cat((torch.eye(width) * (-1) ** seed, torch.zeros(width, width)), dim=1)
  tensors["fc.weight"] += 0.0001 * torch.randn(width, 2 * width, generator=random)
  folder.mkdir(parents=True)
  model = {**config, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
  eagle_config = {"model_type": "eagle", "architectures": ["EagleLlamaForCausalLM"], "method": "eagle", "model": model}
  (folder / "config.json").write_text(json.dumps({**model, **eagle_config}))
  _write(tensors, folder)


def _write(tensors, folder):
  for file in folder.glob("*.safetensors"):
    file.unlink()
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
