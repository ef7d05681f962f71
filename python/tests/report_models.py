# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints as people have them: what the inputs of test_public_reports.py are made of.

A tensor is (dtype, shape, bytes) here, with the dtype as safetensors writes it, so that a
checkpoint can hold what torch cannot.
"""

import json
import math
import os
import pathlib
import random
import struct
import subprocess

_WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1}


def config(**more):
  """The config of a Qwen3 of two layers."""
  return {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
  } | more


def _shapes(c, prefix, mlp):
  hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
  q, k = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
  yield prefix + "embed_tokens.weight", (c["vocab_size"], hidden)
  yield prefix + "norm.weight", (hidden,)
  if not c["tie_word_embeddings"]:
    yield "lm_head.weight", (c["vocab_size"], hidden)
  for n in range(c["num_hidden_layers"]):
    layer = f"{prefix}layers.{n}."
    yield layer + "self_attn.q_proj.weight", (q, hidden)
    yield layer + "self_attn.k_proj.weight", (k, hidden)
    yield layer + "self_attn.v_proj.weight", (k, hidden)
    yield layer + "self_attn.o_proj.weight", (hidden, q)
    yield layer + "input_layernorm.weight", (hidden,)
    yield layer + "post_attention_layernorm.weight", (hidden,)
    if c["model_type"].startswith("qwen3"):
      yield layer + "self_attn.q_norm.weight", (dim,)
      yield layer + "self_attn.k_norm.weight", (dim,)
    if mlp:
      yield layer + "mlp.gate_proj.weight", (inner, hidden)
      yield layer + "mlp.up_proj.weight", (inner, hidden)
      yield layer + "mlp.down_proj.weight", (hidden, inner)


def random_tensors(c, prefix="model.", mlp=True, seed=0):
  """All tensors of the config as BF16 with random bits."""
  source = random.Random(seed)
  return {
    name: ("BF16", shape, source.randbytes(2 * math.prod(shape)))
    for name, shape in _shapes(c, prefix, mlp)
  }


def real_tensors(c, dtype, seed=1):
  """All tensors of the config as F32 or F64, with values from -1 to 1."""
  source = random.Random(seed)
  code = {"F32": "f", "F64": "d"}[dtype]

  def values(shape):
    count = math.prod(shape)
    return struct.pack(f"<{count}{code}", *(source.uniform(-1, 1) for _ in range(count)))

  return {name: (dtype, shape, values(shape)) for name, shape in _shapes(c, "model.", True)}


def finite_e4m3(data):
  """The bytes with E4M3's two NaNs replaced by zero."""
  return bytes(x if x & 0x7F != 0x7F else 0 for x in data)


def write_checkpoint(folder, c, tensors):
  """A folder of config.json and one safetensors file."""
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(c, indent=1))
  header, at = {"__metadata__": {"format": "pt"}}, 0
  for name, (dtype, shape, data) in tensors.items():
    assert len(data) == _WIDTHS[dtype] * math.prod(shape), name
    header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
    at += len(data)
  text = json.dumps(header).encode()
  with open(folder / "model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for _, _, data in tensors.values():
      file.write(data)
  return folder


def dtypes_of(path):
  """The dtypes of a safetensors file."""
  data = path.read_bytes()
  header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
  return {tensor["dtype"] for name, tensor in header.items() if name != "__metadata__"}


def as_torch(tensors):
  """BF16 tensors as torch's."""
  import torch

  return {
    name: torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(*shape)
    for name, (_, shape, data) in tensors.items()
  }


def save_dcp(folder, c, state):
  """A folder written by torch.distributed.checkpoint, with a config.json beside it."""
  import torch.distributed.checkpoint as dcp

  dcp.save(state, checkpoint_id=folder, no_dist=True)
  (folder / "config.json").write_text(json.dumps(c))
  return folder


def load_dcp(folder):
  """The tensors of a folder of torch.distributed.checkpoint, by their whole names."""
  import torch
  from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

  def flat(state, prefix=""):
    for key, value in state.items():
      if isinstance(value, dict):
        yield from flat(value, f"{prefix}{key}.")
      elif torch.is_tensor(value):
        yield prefix + key, value

  return dict(flat(_load_state_dict_from_keys(checkpoint_id=folder)))


class Program:
  """The program `reshard` in a folder: arguments are relative to it."""

  def __init__(self, folder):
    self.folder = pathlib.Path(folder)

  def run(self, *arguments):
    """(exit status, all that it printed)."""
    done = subprocess.run(
      [os.environ["RESHARD_BIN"], *map(str, arguments)],
      cwd=self.folder,
      capture_output=True,
      text=True,
      timeout=120,
      check=False,
    )
    return done.returncode, done.stdout + done.stderr

  def succeed(self, *arguments):
    status, said = self.run(*arguments)
    assert status == 0, f"{' '.join(map(str, arguments))}: exit {status}\n{said}"
    return said

  def fail(self, *arguments):
    status, said = self.run(*arguments)
    assert status not in (0, -6, -11), f"{' '.join(map(str, arguments))}: exit {status}\n{said}"
    return said

  def same_ranks(self, one, other):
    """Whether both folders have files of ranks, and the same."""
    files = sorted(path.name for path in (self.folder / one).glob("rank-*.safetensors"))
    assert files
    return all(
      (self.folder / one / name).read_bytes() == (self.folder / other / name).read_bytes()
      for name in files
    )
