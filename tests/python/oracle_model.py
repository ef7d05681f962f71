# SPDX-License-Identifier: Apache-2.0
"""The whole model: a Hugging Face checkpoint folder in memory, asked by layer and role.

What a layer is follows from the names that the checkpoint holds; of config.json only sizes are used
that names and shapes hide.
"""

import json
import pathlib
from dataclasses import dataclass, field

from oracle_tensor import Tensor, read_tensors

_ZERO_CENTERED = {"gemma3", "gemma3_text", "qwen3_next"}


class Layer:
  """A layer by the prefix of its names: of the decoder, or of an MTP module."""

  def __init__(self, model, prefix):
    self.model, self.prefix = model, prefix

  def find(self, name):
    """The tensor by the rest of its name, or None."""
    return self.model.find(self.prefix + name)

  def first(self, *names):
    """The first of these that the checkpoint has, or None."""
    found = (self.find(name) for name in names)
    return next((tensor for tensor in found if tensor is not None), None)

  def mixer_kind(self):
    """"mamba", "delta", "mla", "attention" or None."""
    for name, kind in (
      ("mixer.A_log", "mamba"),
      ("linear_attn.A_log", "delta"),
      ("self_attn.kv_b_proj.weight", "mla"),
      ("self_attn.q_proj.weight", "attention"),
      ("mixer.q_proj.weight", "attention"),
    ):
      if self.find(name) is not None:
        return kind
    return None

  def attention_module(self):
    """The name of the attention's module."""
    return "mixer" if self.find("mixer.q_proj.weight") is not None else "self_attn"

  def attention(self, name):
    """A tensor of the attention, or None."""
    return self.find(f"{self.attention_module()}.{name}")

  def ffn_block(self):
    """The name of the module with the MLP or the experts, or None."""
    for block in ("mlp", "block_sparse_moe", "mixer"):
      if self._router(block) is not None or self.find(f"{block}.down_proj.weight") is not None:
        return block
    return None

  def has_experts(self):
    return self.router() is not None

  def ffn(self, name):
    """A tensor of the MLP or beside the experts, or None."""
    return self.find(f"{self.ffn_block()}.{name}")

  def router(self):
    """The router's weight, or None where there are no experts."""
    return self._router(self.ffn_block())

  def _router(self, block):
    return self.first(f"{block}.gate.weight", f"{block}.router.weight")

  def shared(self, name):
    """A tensor of the shared experts, or None."""
    return self.first(
      f"{self.ffn_block()}.shared_experts.{name}", f"{self.ffn_block()}.shared_expert.{name}"
    )

  def num_experts(self):
    return self.router().data.shape[0]

  def experts_are_stacked(self):
    """gpt-oss: all experts in one tensor, [in, out], gate and up in turn."""
    return self.ffn("experts.gate_up_proj") is not None

  def expert(self, number):
    """(gate, up, down) of one expert as [out, in]; gate is None where there is none."""
    if self.experts_are_stacked():
      gate_up, down = (
        Tensor(t.dtype, t.data[number].T)
        for t in (self.ffn("experts.gate_up_proj"), self.ffn("experts.down_proj"))
      )
      return every_second(gate_up, 0), every_second(gate_up, 1), down
    if self.ffn_block() == "block_sparse_moe":
      parts = ("w1", "w3", "w2")
    else:
      parts = ("gate_proj", "up_proj", "down_proj")
    return tuple(self.ffn(f"experts.{number}.{part}.weight") for part in parts)

  def expert_bias(self, number):
    """(gate, up, down) biases of one expert, or Nones."""
    if self.ffn("experts.gate_up_proj_bias") is None:
      return None, None, None
    gate_up, down = (
      Tensor(t.dtype, t.data[number])
      for t in (self.ffn("experts.gate_up_proj_bias"), self.ffn("experts.down_proj_bias"))
    )
    return every_second(gate_up, 0), every_second(gate_up, 1), down

  def mixer_norm(self):
    """The norm before the mixer."""
    return self.first("input_layernorm.weight", "norm.weight")

  def ffn_norm(self):
    """The norm before the MLP or experts."""
    return self.first(
      "pre_feedforward_layernorm.weight", "post_attention_layernorm.weight", "norm.weight"
    )

  def has_sandwich_norms(self):
    """True where norms follow the mixer and the MLP too."""
    return self.find("pre_feedforward_layernorm.weight") is not None


@dataclass
class MtpModule:
  """One module for multi-token prediction: tensors of its own, and its layers."""

  embedding_norm: Tensor
  hidden_norm: Tensor
  projection: Tensor
  final_norm: Tensor
  layers: list


@dataclass
class Model:
  """Whole tensors under their Hugging Face names, and the sizes that names and shapes hide."""

  tensors: dict
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  config: dict = field(default_factory=dict)

  def find(self, name):
    """The tensor, or None: not every checkpoint has biases, q/k norms or a head."""
    return self.tensors.get(name)

  def size(self, name):
    """A size that config.json states."""
    return self.config[name]

  def kind(self):
    """config.json's model_type."""
    return self.config.get("model_type", "")

  def is_hybrid(self):
    """True for Nemotron-H's names, where a layer is a mixer, an MLP or experts alone."""
    return "backbone.embeddings.weight" in self.tensors

  def norms_are_zero_centered(self):
    """True where the checkpoint's layer norms multiply by 1 + weight."""
    return self.kind() in _ZERO_CENTERED

  def embedding(self):
    hybrid = self.find("backbone.embeddings.weight")
    return self.find("model.embed_tokens.weight") if hybrid is None else hybrid

  def final_norm(self):
    return self.find("backbone.norm_f.weight" if self.is_hybrid() else "model.norm.weight")

  def decoder_layer(self, index):
    return Layer(self, f"{'backbone' if self.is_hybrid() else 'model'}.layers.{index}.")

  def num_mtp(self):
    """Modules for multi-token prediction that the checkpoint holds."""
    if self.is_hybrid():
      return len([name for name in self.tensors if name.endswith(".eh_proj.weight")])
    if "mtp.fc.weight" in self.tensors:
      return len({name.split(".")[2] for name in self.tensors if name.startswith("mtp.layers.")})
    trailing = range(self.num_layers, self.num_layers + 9)
    return sum(f"model.layers.{index}.eh_proj.weight" in self.tensors for index in trailing)

  def mtp_module(self, number):
    """Module `number`, from 0."""
    if self.is_hybrid():
      length = len(self.size("mtp_layers_block_type"))
      layers = [Layer(self, f"mtp.layers.{number * length + k}.") for k in range(length)]
      own = [layers[0].find(f"{name}.weight") for name in ("enorm", "hnorm", "eh_proj")]
      return MtpModule(*own, layers[-1].find("final_layernorm.weight"), layers)
    if "mtp.fc.weight" in self.tensors:
      names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
      own = [self.find(f"mtp.{name}.weight") for name in names]
      return MtpModule(*own, [Layer(self, f"mtp.layers.{number}.")])
    layer = Layer(self, f"model.layers.{self.num_layers + number}.")
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    return MtpModule(*(layer.find(f"{name}.weight") for name in names), [layer])

  def layer(self, index, name):
    """A tensor of layer `index` (from 0) by the rest of its name, or None."""
    return self.decoder_layer(index).find(name)

  def moe_block(self, index):
    """The name of layer `index`'s expert block, or None where the layer is dense."""
    layer = self.decoder_layer(index)
    return layer.ffn_block() if layer.has_experts() else None

  def num_experts(self, index):
    """Experts of layer `index`."""
    return self.decoder_layer(index).num_experts()

  def is_tied(self):
    """True when the embedding serves as the head too, so the checkpoint has no head."""
    return "lm_head.weight" not in self.tensors


def every_second(tensor, start):
  """Rows start, start + 2, start + 4..."""
  return Tensor(tensor.dtype, tensor.data[start::2])


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
    num_layers=config.get("num_hidden_layers") or len(config["layers_block_type"]),
    num_heads=heads,
    num_kv_heads=config.get("num_key_value_heads") or heads,
    head_dim=config.get("head_dim") or config["hidden_size"] // heads,
    config=config,
  )
