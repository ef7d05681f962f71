# SPDX-License-Identifier: Apache-2.0
"""Weights as AWQ and GPTQ store them, by their documented layout: parts by the ends of their names, and values."""

import torch

GENERATOR = torch.Generator().manual_seed(5)


def codes(*shape, bits=4):
  return torch.randint(0, 1 << bits, shape, generator=GENERATOR)


def scales(*shape, dtype=torch.float16):
  return (torch.rand(shape, generator=GENERATOR) * 0.01 + 1e-3).to(dtype)


def words(integers, bits, order=None):
  """Rows of integers, as many as fill 32 bits in a word; place i has the integer order[i]."""
  k = 32 // bits
  order = order or list(range(k))
  lanes = integers.reshape(integers.shape[0], -1, k)[:, :, order].to(torch.int64)
  packed = (lanes << (torch.arange(k) * bits)).sum(-1)
  return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def weights(q, zeros, scale, group_of):
  """[out, in] of integers [in, out], and of zero points and scales [groups, out]."""
  return ((q - zeros[group_of]).float() * scale[group_of].float()).T.contiguous()


def awq(rows, cols, group=32, dtype=torch.float16):
  """AutoAWQ's gemm: [in, out], eight columns in a word, in an order that suits its kernels."""
  order = [0, 2, 4, 6, 1, 3, 5, 7]
  q, zeros, scale = codes(cols, rows), codes(cols // group, rows), scales(cols // group, rows, dtype=dtype)
  parts = {".qweight": words(q, 4, order), ".qzeros": words(zeros, 4, order), ".scales": scale}
  return parts, weights(q, zeros, scale, torch.arange(cols) // group)


def gptq(rows, cols, bits=4, first=True, order="random", group=32, dtype=torch.float16):
  """AutoGPTQ's: [in, out], words along in; zero points along out, in the first format less one. `order`, of columns:
  "random", "groups" one after another, or None, without a table. A group of -1 is all columns."""
  group = cols if group == -1 else group
  q, scale = codes(cols, rows, bits=bits), scales(cols // group, rows, dtype=dtype)
  zeros = codes(cols // group, rows, bits=bits).clamp(min=1 if first else 0)
  group_of = torch.arange(cols) // group
  if order == "random":
    group_of = group_of[torch.randperm(cols, generator=GENERATOR)]
  parts = {
    ".qweight": words(q.T, bits).T.contiguous(), ".qzeros": words(zeros - int(first), bits), ".scales": scale,
    ".g_idx": group_of.to(torch.int32),
  }  # fmt: skip
  if order is None:
    del parts[".g_idx"]
  return parts, weights(q, zeros, scale, group_of)


def packed(rows, cols, group=32, dtype=torch.float16):
  """compressed-tensors' pack-quantized with zero points: [out, in], words along in; zero points along out."""
  group = cols if group == -1 else group
  q, scale, zeros = codes(rows, cols), scales(rows, cols // group, dtype=dtype), codes(rows, cols // group)
  parts = {
    ".weight_packed": words(q, 4), ".weight_scale": scale, ".weight_zero_point": words(zeros.T, 4).T.contiguous(),
    ".weight_shape": torch.tensor([rows, cols]),
  }  # fmt: skip
  return parts, weights(q.T, zeros.T, scale.T, torch.arange(cols) // group)


def pack_quantized(group):
  """The quantization_config of such weights."""
  how = {"num_bits": 4, "type": "int", "symmetric": False}
  how |= {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
  groups = {"group_0": {"targets": ["Linear"], "weights": how}}
  method = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
  return {**method, "config_groups": groups, "ignore": ["lm_head"]}
