# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as they are published, of classes of which transformers 5 writes other ones."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import safetensors.torch
import torch

Tensors = dict[str, torch.Tensor]
_ATTENTION = re.compile(r"(model\.(?:language_model\.)?)layers\.\d+\.(self_attn\.q_proj\.weight)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


@dataclasses.dataclass(frozen=True)
class Stored:
  """Another form of a class's checkpoints.

  said    what is other, for `proof`
  change  the tensors in that form
  sizes   of the first small model, in which the form can be told from that of transformers
  config  keys of the decoder's config; dotted, of another part's
  last    the type of the last layer, if it must be this one
  only    the frameworks that it is for; none: all
  omits   the framework leaves the layer behind the last one out
  alone   the frameworks that load no other form
  shaped  a regular expression of the rules that hold for tensors of one shape, because this form has them in another
  """

  said: str
  change: Callable[[Tensors], Tensors]
  sizes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  last: str | None = None
  only: Sequence[str] = ()
  omits: bool = False
  alone: Sequence[str] = ()
  shaped: str = ""


def stacked(tensors: Tensors) -> Tensors:
  """With all experts of a layer in one tensor: gate and up [E, 2I, H], down [E, H, I]."""
  out: Tensors = {}
  experts: dict[str, dict[str, dict[int, torch.Tensor]]] = {}
  for name, tensor in tensors.items():
    if found := _EXPERT.fullmatch(name):
      experts.setdefault(found[1], {}).setdefault(found[3], {})[int(found[2])] = tensor
    else:
      out[name] = tensor
  for prefix, of in experts.items():
    gate, up, down = (torch.stack([of[kind][e] for e in sorted(of[kind])]) for kind in ("gate", "up", "down"))
    out |= {f"{prefix}.gate_up_proj": torch.cat([gate, up], dim=1), f"{prefix}.down_proj": down}
  return out


def transposed(tensors: Tensors) -> Tensors:
  """With experts whose inputs come first: gate and up [E, H, 2I], down [E, I, H]."""
  turned = re.compile(r".+\.experts\.(gate_up|down)_proj")
  return {n: t.transpose(1, 2).contiguous() if turned.fullmatch(n) else t for n, t in tensors.items()}


def dense_as_mlp(tensors: Tensors) -> Tensors:
  """With dense layers called `mlp`: transformers writes them by the name of those with experts."""
  return {re.sub(r"\.block_sparse_moe\.((?:gate|up|down)_proj\.)", r".mlp.\1", name): t for name, t in tensors.items()}


def predicting(tensors: Tensors) -> Tensors:
  """With a module for multi-token prediction: an attention layer behind a projection of two hidden states."""
  first = next(found for found in map(_ATTENTION.fullmatch, tensors) if found)
  layer, norm = first[0].removesuffix(first[2]), f"{first[1]}norm.weight"
  out = {f"mtp.layers.0.{n.removeprefix(layer)}": t for n, t in tensors.items() if n.startswith(layer)}
  names = ("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
  hidden = len(tensors[norm])
  out |= {f"{name}.weight": tensors[norm] for name in names} | {"mtp.fc.weight": tensors[norm].new_zeros(hidden, 2 * hidden)}
  return {name: torch.randn(t.shape).to(t.dtype) for name, t in out.items()}


def trailing(tensors: Tensors) -> Tensors:
  """With a module for multi-token prediction as DeepSeek's: a layer behind the last one, and what makes its input."""
  count = 1 + max(int(found[1]) for found in map(_LAYER.match, tensors) if found)
  last, beyond = f"model.layers.{count - 1}.", f"model.layers.{count}."
  shapes: dict[str, tuple[int, ...]]
  shapes = {beyond + n.removeprefix(last): tuple(t.shape) for n, t in tensors.items() if n.startswith(last)}
  words, hidden = tensors["model.embed_tokens.weight"].shape
  shapes |= {f"{beyond}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
  shapes |= {f"{beyond}{name}.weight": (words, hidden) for name in ("embed_tokens", "shared_head.head")}
  shapes[f"{beyond}eh_proj.weight"] = (hidden, 2 * hidden)
  return tensors | {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


#: The width of an expert is told from that of the shared ones.
_WIDTHS = {"shared_width": 72}
_STACKED = Stored("experts in one tensor", stacked, _WIDTHS)
_MTP = {"mtp_num_hidden_layers": 1}
# Megatron-Core builds that module as the last layer, which has attention in published models.
_PREDICTING = Stored(
  "multi-token prediction", lambda tensors: tensors | predicting(tensors), config=_MTP, last="full_attention"
)
# The experts of that module are single ones.
_STACKED_PREDICTING = Stored(
  "experts in one tensor and multi-token prediction", lambda tensors: stacked(tensors) | predicting(tensors), _WIDTHS,
  config=_MTP, last="full_attention",
)  # fmt: skip
_TRAILING = Stored(
  "multi-token prediction left out", trailing, config={"num_nextn_predict_layers": 1}, only=("vllm", "sglang"), omits=True
)
#: By model type.
STORED: Mapping[str, tuple[Stored, ...]] = {
  "deepseek_v32": (_TRAILING,),
  "glm4_moe_lite": (_TRAILING,),
  "glm_moe_dsa": (_TRAILING,),
  "kimi_linear": (Stored("dense layers called mlp", dense_as_mlp, alone=("vllm", "sglang")),),
  "qwen3_5": (_PREDICTING,),
  "qwen3_5_text": (_PREDICTING,),
  "qwen3_5_moe": (_STACKED, _STACKED_PREDICTING),
  "qwen3_5_moe_text": (_STACKED, _STACKED_PREDICTING),
  # Square experts are not told from transposed ones, by transformers and Megatron-Bridge neither.
  "qwen3_vl_moe": (
    Stored(
      "experts transposed", transposed, {"expert_width": 56}, alone=("vllm", "sglang"), shaped=r".+\.experts\.(gate_up|down)_proj"
    ),
  ),
}


def store(folder: pathlib.Path, stored: Stored) -> None:
  """Writes a small checkpoint that transformers wrote, of one file, in the other form."""
  path = folder / "model.safetensors"
  tensors = stored.change(safetensors.torch.load_file(path))
  safetensors.torch.save_file(tensors, path, {"format": "pt"})
  config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
  for name, value in stored.config.items():
    part, _, key = name.rpartition(".")
    (config[part] if part else config.get("text_config", config))[key] = value
  (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
