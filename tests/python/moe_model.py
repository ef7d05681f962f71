# SPDX-License-Identifier: Apache-2.0
"""A small mixture of experts whose matrices are quantised in many forms."""

import copy
import json

import torch

from folders import command, read, write

CONFIG = {
  "architectures": ["Qwen3MoeForCausalLM"],
  "model_type": "qwen3_moe",
  "torch_dtype": "bfloat16",
  "hidden_size": 320,
  "intermediate_size": 256,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 64,
  "vocab_size": 200,
  "num_experts": 4,
  "num_experts_per_tok": 2,
  "moe_intermediate_size": 192,
  "mlp_only_layers": [0],
  "tie_word_embeddings": False,
}  # fmt: skip
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
E4M3 = torch.float8_e4m3fn
# Values of E2M1 codes.
CODES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def compressed_tensors(form, weights, config=CONFIG):
  """A config whose linear layers compressed-tensors has stored."""
  group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
  how = {
    "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*mlp.gate$"], "kv_cache_scheme": None, "config_groups": {"group_0": group},
  }  # fmt: skip
  return copy.deepcopy({**config, "quantization_config": how})


def is_linear(name):
  return name.endswith(".weight") and name.split(".")[-2] in LINEAR


def plain_checkpoint(root):
  """(folder, tensors) of BF16 with rows of very different sizes."""
  (root / "config.json").write_text(json.dumps(CONFIG))
  command("synth", root / "config.json", root / "hf")
  tensors = read(root / "hf")
  generator = torch.Generator().manual_seed(7)
  for name, tensor in tensors.items():
    numbers = torch.randn(tensor.shape, generator=generator)
    if tensor.dim() == 2:
      numbers *= torch.exp2(torch.randint(-9, 4, (tensor.shape[0], 1), generator=generator))
    tensors[name] = numbers.to(tensor.dtype)
  tensors["model.layers.0.self_attn.q_proj.weight"][:128, :128] = 0
  return write(root / "bf16", tensors, CONFIG), tensors


def quantised(tensors, parts_of):
  """(stored, values): of each linear layer's weight what parts_of(name, tensor) gives, its parts by
  name and its values; others as they are."""
  stored, values = {}, {}
  for name, tensor in tensors.items():
    if is_linear(name):
      parts, values[name] = parts_of(name, tensor)
      stored.update(parts)
    else:
      stored[name] = values[name] = tensor
  return stored, values


def unpacked(packed):
  """The numbers of E2M1 pairs, the even column in the low nibble."""
  codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
  return CODES[codes.int()]


def packed(shape, generator):
  """Random pairs."""
  half = (*shape[:-1], shape[-1] // 2)
  return torch.randint(0, 256, half, generator=generator, dtype=torch.uint8)


def random_e4m3(shape, generator):
  """All finite numbers but those above 2^8."""
  low = torch.randint(0, 0x78, shape, generator=generator, dtype=torch.uint8)
  sign = torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8) << 7
  return (low | sign).view(E4M3)


def by_blocks(scales, shape):
  """A scale for each element, of scales [blocks down, blocks across]."""
  rows, cols = -(-shape[0] // scales.shape[0]), -(-shape[1] // scales.shape[1])
  rows, cols = (rows, cols) if scales.shape[0] == 1 else (min(rows, 128), min(cols, 128))
  wide = scales.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
  return wide[: shape[0], : shape[1]]
