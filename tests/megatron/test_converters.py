# SPDX-License-Identifier: Apache-2.0
"""What reshard puts into Megatron's parameters, against what Megatron-Bridge's own converters put there:
bit for bit, for every parameter of a tiny model of each class."""

import json
import os
import struct
import subprocess

import converters
import pytest
import torch
import world  # noqa: F401  before megatron, which it lets be imported without a GPU
from models import MODELS, VOCABULARY

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_GEMMA3 = MODELS["llama"].hf | {
  "architectures": ["Gemma3ForCausalLM"],
  "model_type": "gemma3_text",
  "tie_word_embeddings": True,
}
CONFIGS = {name: (model.hf, model.megatron) for name, model in MODELS.items()}
CONFIGS["gemma3"] = (_GEMMA3, MODELS["llama"].megatron)
# Megatron-Bridge gives all layers of Qwen3-MoE experts.
CONFIGS["qwen3-moe"] = (MODELS["qwen3-moe"].hf | {"mlp_only_layers": []}, MODELS["qwen3-moe"].megatron)
# Release 0.3.1 has no modules for multi-token prediction of DeepSeek, and old names of convolutions.
LAYOUTS = {"deepseek": "megatron:mtp=0", "nemotron": "megatron:mamba_names=old"}


def read(path):
  """The tensors of a safetensors file."""
  data = path.read_bytes()
  (length,) = struct.unpack("<Q", data[:8])
  header = json.loads(data[8 : 8 + length])
  tensors = {}
  for name, entry in header.items():
    if name != "__metadata__":
      begin, end = (8 + length + offset for offset in entry["data_offsets"])
      flat = torch.frombuffer(bytearray(data[begin:end]), dtype=_DTYPES[entry["dtype"]])
      tensors[name] = flat.reshape(entry["shape"])
  return tensors


def reshard(*arguments):
  command = [os.environ["RESHARD_BIN"], *map(str, arguments)]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.fixture(scope="module")
def bridges():
  return converters.bridges()


@pytest.mark.parametrize("name", converters.NAMES)
def test_parameters_hold_what_megatron_bridge_puts_there(name, bridges, tmp_path):
  hf, megatron = CONFIGS[name]
  (tmp_path / "config").mkdir()
  (tmp_path / "config" / "config.json").write_text(json.dumps(hf))
  layout = LAYOUTS.get(name, "megatron")
  reshard("synth", tmp_path / "config", tmp_path / "hf")
  reshard("convert", tmp_path / "hf", tmp_path / "ranks", "--to", layout)
  stored = read(tmp_path / "hf" / "model.safetensors")
  held = read(tmp_path / "ranks" / "rank-00000.safetensors")
  bridge = converters.bridge(bridges[name], hf)
  for parameter, have in held.items():
    want = converters.converted(bridge, parameter, stored, megatron)
    assert want is not None, f"Megatron-Bridge does not know {parameter}"
    if parameter in ("embedding.word_embeddings.weight", "output_layer.weight"):
      have = have[:VOCABULARY]
    assert have.shape == want.shape, parameter
    assert torch.equal(have, want.to(have.dtype)), parameter
  assert len(held) > hf["num_hidden_layers"]
