# SPDX-License-Identifier: Apache-2.0
"""A rank's modules for a layout's notation, and its model as reshard opens it."""

import json
import os

import torch
from test_modules import STAGES, STATE, VOCABULARY, keys_of

import reshard

#: Where modules are: on the GPU whose number RESHARD_TEST_GPU gives, else in the host's memory.
DEVICE = torch.device(f"cuda:{os.environ['RESHARD_TEST_GPU']}" if os.environ.get("RESHARD_TEST_GPU") else "cpu")


def build(model, text, padded=None):
  """The chunks of the present rank on DEVICE, as training begins."""
  keys = keys_of(text)
  parallel = {STATE[k]: v for k, v in keys.items() if k in STATE and k != "cp"}
  parallel |= {STAGES[k]: v for k, v in keys.items() if k in STAGES}
  padded = padded or -(-VOCABULARY // (128 * keys.get("tp", 1))) * 128 * keys.get("tp", 1)
  chunks = keys.get("vpp", 1)
  modules = []
  for chunk in range(chunks):
    module = model.build(parallel, chunk if chunks > 1 else None, padded).bfloat16().to(DEVICE)
    for part in module.modules():
      if hasattr(part, "_maintain_float32_expert_bias"):
        part._maintain_float32_expert_bias()
    modules.append(module)
  return modules


def opened(model, folder):
  (folder / "config.json").write_text(json.dumps(model.hf))
  return reshard.open_model(folder)
