# SPDX-License-Identifier: Apache-2.0
"""Modules for multi-token prediction, added to a tiny checkpoint as the published ones carry them.

transformers neither writes nor keeps these tensors. Their names, checked against vLLM 0.33.0
(deepseek_mtp.py, glm4_moe_mtp.py, qwen3_next_mtp.py, nemotron_h_mtp.py):

* DeepSeek-V3, GLM-4.5: trailing model.layers.N with enorm, hnorm, eh_proj, shared_head.norm, and
  copies of the embedding and the head.
* Qwen3-Next: mtp.fc, mtp.pre_fc_norm_embedding, mtp.pre_fc_norm_hidden, mtp.norm, mtp.layers.0.
* Nemotron-H: mtp.layers.K, counted over the blocks of all modules; the first layer of a module has
  enorm, hnorm and eh_proj, its last one final_layernorm.
"""

import json

import safetensors.torch
import torch


def _fresh(tensor):
  """Random values of the same shape and dtype."""
  center = 1.0 if tensor.dim() == 1 else 0.0
  return (torch.randn(tensor.shape) * 0.2 + center).to(tensor.dtype)


def _layer(tensors, prefix):
  """The tensors under `prefix` by the rest of their names."""
  return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def _copied(tensors, prefix, target):
  """A layer of the shape of `prefix` with values of its own, under `target`."""
  return {target + rest: _fresh(t) for rest, t in _layer(tensors, prefix).items()}


def _trailing(tensors, config, module):
  layers, hidden = config["num_hidden_layers"], config["hidden_size"]
  at = f"model.layers.{layers + module}."
  norm = tensors["model.norm.weight"]
  head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
  return _copied(tensors, f"model.layers.{layers - 1}.", at) | {
    at + "enorm.weight": _fresh(norm),
    at + "hnorm.weight": _fresh(norm),
    at + "eh_proj.weight": _fresh(norm.new_empty(hidden, 2 * hidden)),
    at + "shared_head.norm.weight": _fresh(norm),
    at + "embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
    at + "shared_head.head.weight": tensors[head].clone(),
  }


def _qwen(tensors, config, module):
  layers, hidden = config["num_hidden_layers"], config["hidden_size"]
  norm = tensors["model.norm.weight"]
  shared = {
    "mtp.fc.weight": _fresh(norm.new_empty(hidden, 2 * hidden)),
    "mtp.pre_fc_norm_embedding.weight": _fresh(norm),
    "mtp.pre_fc_norm_hidden.weight": _fresh(norm),
    "mtp.norm.weight": _fresh(norm),
  }
  layer = _copied(tensors, f"model.layers.{layers - 1}.", f"mtp.layers.{module}.")
  return layer if module else layer | shared


def _nemotron(tensors, config, module):
  kinds, block = config["layers_block_type"], config["mtp_layers_block_type"]
  hidden, norm = config["hidden_size"], tensors["backbone.norm_f.weight"]
  added = {}
  for k, kind in enumerate(block, module * len(block)):
    added |= _copied(tensors, f"backbone.layers.{kinds.index(kind)}.", f"mtp.layers.{k}.")
  first = f"mtp.layers.{module * len(block)}."
  return added | {
    first + "enorm.weight": _fresh(norm),
    first + "hnorm.weight": _fresh(norm),
    first + "eh_proj.weight": _fresh(norm.new_empty(hidden, 2 * hidden)),
    f"mtp.layers.{(module + 1) * len(block) - 1}.final_layernorm.weight": _fresh(norm),
  }


_MAKERS = {
  "deepseek_v3": _trailing,
  "glm4_moe": _trailing,
  "qwen3_next": _qwen,
  "nemotron_h": _nemotron,
}


def add_modules(folder, modules):
  """Adds `modules` modules to the single file of `folder`, and says so in its config."""
  config = json.loads((folder / "config.json").read_text())
  path = folder / "model.safetensors"
  tensors = safetensors.torch.load_file(path)
  added = {}
  for module in range(modules):
    added |= _MAKERS[config["model_type"]](tensors, config, module)
  safetensors.torch.save_file(tensors | added, path, metadata={"format": "pt"})
  config["num_nextn_predict_layers"] = modules
  (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
