# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of transformers' classes in which no norm, bias or expert is as another, and their logits."""

import json

import torch
import transformers
from reshard.learn.models import tiny
from reshard.learn.models.bases import Base
from reshard.learn.models.published import publish
from reshard.learn.models.stored import store

_TEXT = torch.arange(2, 14).reshape(2, 6)


def write_model(folder, name, stored=None, base=Base()):
  """Writes a checkpoint of the class, as transformers does or in another form."""
  config = _that_computes(tiny.config_of(name, base.sizes(tiny.SEEN[0]), base.flags(name)))
  if stored is not None and stored.last is not None:
    decoder = config.get_text_config()
    decoder.layer_types = [*decoder.layer_types[:-1], stored.last]
  torch.manual_seed(sum(name.encode()))
  model = getattr(transformers, name)._from_config(config, dtype=torch.bfloat16)
  with torch.no_grad():
    for tensor in (*model.parameters(), *model.buffers()):
      if tensor.is_floating_point():
        tensor += torch.randint(-40, 41, tensor.shape) / 1024
  model.save_pretrained(folder)
  publish(model, folder)
  if stored is not None:
    store(folder, stored)
  return folder


# Whose heads are rotated in sections, as wide as those of published models unless the config says otherwise.
_IN_SECTIONS = {"qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm4v_moe_text", "glm_ocr_text", "paddleocr_vl_text"}


def _that_computes(config):
  """With parts of rotary embeddings that fit small heads. No tensor's shape depends on them."""
  decoder = config.get_text_config()
  said = decoder.to_dict()
  if said.get("qk_rope_head_dim"):
    decoder.head_dim = said["qk_rope_head_dim"]
  if decoder.model_type in _IN_SECTIONS:
    head = said.get("head_dim") or decoder.hidden_size // decoder.num_attention_heads
    half = int(head * decoder.rope_parameters.get("partial_rotary_factor", 1)) // 2
    decoder.rope_parameters["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
  return config


def logits(folder, name):
  """The logits of a text, in F32. Fails if the class misses a tensor, or finds one that it does not want."""
  kind = getattr(transformers, name)
  model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
  assert not any(info.values()), info
  with torch.no_grad():
    return model.eval()(input_ids=_TEXT, use_cache=False).logits


def config_of(folder):
  return json.loads((folder / "config.json").read_text())
