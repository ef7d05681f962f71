# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters as PEFT writes them, and weights with an adapter merged in."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 4, 6
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
CONFIG = {
  "peft_type": "LORA",
  "task_type": "CAUSAL_LM",
  "r": RANK,
  "lora_alpha": ALPHA,
  "target_modules": sorted(m.rpartition(".")[2] for m in MODULES),
  "bias": "none",
  "use_dora": False,
  "use_rslora": False,
  "fan_in_fan_out": False,
  "modules_to_save": None,
  "inference_mode": True,
}


def read(folder):
  return {k: v for f in sorted(folder.glob("*.safetensors")) for k, v in load_file(f).items()}


def write(folder, base, seed):
  """An adapter with random factors for a checkpoint's folder."""
  random = torch.Generator().manual_seed(seed)
  factors = {}
  for name, weight in sorted(read(base).items()):
    module = name.removesuffix(".weight")
    if module.endswith(MODULES):
      rows, columns = weight.shape
      at = f"base_model.model.{module}"
      factors[f"{at}.lora_A.weight"] = 0.3 * torch.randn(RANK, columns, generator=random)
      factors[f"{at}.lora_B.weight"] = 0.3 * torch.randn(rows, RANK, generator=random)
  folder.mkdir(parents=True, exist_ok=True)
  save_file(factors, folder / "adapter_model.safetensors")
  (folder / "adapter_config.json").write_text(json.dumps(CONFIG))


def merge(base, adapter, folder):
  """The checkpoint `base` with an adapter merged in."""
  shutil.copytree(base, folder)
  tensors, factors = read(base), read(adapter)
  for name in list(tensors):
    at = f"base_model.model.{name.removesuffix('.weight')}"
    if f"{at}.lora_A.weight" in factors:
      tensors[name] = tensors[name] + (factors[f"{at}.lora_B.weight"] @ factors[f"{at}.lora_A.weight"]) * (ALPHA / RANK)
  for file in folder.glob("*.safetensors"):
    file.unlink()
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
