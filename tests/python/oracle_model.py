# SPDX-License-Identifier: Apache-2.0
"""The whole model: a Hugging Face checkpoint folder in memory, asked by layer and role."""

import json
import pathlib
from dataclasses import dataclass

from oracle_tensor import read_tensors


@dataclass
class Model:
  """Whole tensors under their Hugging Face names, and the sizes that names and shapes hide."""

  tensors: dict
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int

  def find(self, name):
    """The tensor, or None: not every checkpoint has biases, q/k norms or a head."""
    return self.tensors.get(name)

  def layer(self, index, name):
    """A tensor of layer `index` (from 0) by the rest of its name, or None."""
    return self.find(f"model.layers.{index}.{name}")

  def moe_block(self, index):
    """The name of layer `index`'s expert block, or None where the layer is dense."""
    for block in ("mlp", "block_sparse_moe"):
      if any(name.startswith(f"model.layers.{index}.{block}.experts.") for name in self.tensors):
        return block
    return None

  def num_experts(self, index):
    """Experts of layer `index`, counted from the names."""
    prefix = f"model.layers.{index}.{self.moe_block(index)}.experts."
    return len(
      {name[len(prefix) :].split(".")[0] for name in self.tensors if name.startswith(prefix)}
    )

  def expert(self, index, expert):
    """(gate, up, down) of one expert."""
    if self.moe_block(index) == "block_sparse_moe":
      parts = ("w1", "w3", "w2")
    else:
      parts = ("gate_proj", "up_proj", "down_proj")
    block = self.moe_block(index)
    return tuple(self.layer(index, f"{block}.experts.{expert}.{part}.weight") for part in parts)

  def is_tied(self):
    """True when the embedding serves as the head too, so the checkpoint has no head."""
    return "lm_head.weight" not in self.tensors


def read_checkpoint(folder):
  """All tensors of a Hugging Face checkpoint folder, one file or several with an index."""
  folder = pathlib.Path(folder)
  single = folder / "model.safetensors"
  index_path = folder / "model.safetensors.index.json"
  assert single.exists() != index_path.exists(), f"{folder}: neither one file nor an index, or both"
  if single.exists():
    return read_tensors(single)
  weight_map = json.loads(index_path.read_text())["weight_map"]
  tensors = {}
  for file in sorted(set(weight_map.values())):
    part = read_tensors(folder / file)
    assert set(part) == {name for name, home in weight_map.items() if home == file}, (
      f"index and {file} disagree"
    )
    tensors.update(part)
  return tensors


def read_model(folder):
  """The model in a Hugging Face checkpoint folder."""
  config = json.loads((pathlib.Path(folder) / "config.json").read_text())
  heads = config["num_attention_heads"]
  return Model(
    tensors=read_checkpoint(folder),
    num_layers=config["num_hidden_layers"],
    num_heads=heads,
    num_kv_heads=config.get("num_key_value_heads") or heads,
    head_dim=config.get("head_dim") or config["hidden_size"] // heads,
  )
