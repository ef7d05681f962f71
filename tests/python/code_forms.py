# SPDX-License-Identifier: Apache-2.0
"""Weights as AWQ, GPTQ and HQQ store them, by their documented layout: parts by the ends of their names, and values."""

import torch

GENERATOR = torch.Generator().manual_seed(5)


def codes(*shape, bits=4):
  return torch.randint(0, 1 << bits, shape, generator=GENERATOR)


def scales(*shape, dtype=torch.float16):
  return (torch.rand(shape, generator=GENERATOR) * 0.01 + 1e-3).to(dtype)


def words(integers, bits, order=None):
  """Rows of integers, as many as fill 32 bits in a word; place i has the integer order[i]. Those of 3 bits cross words:
  32 of them are 96 bits, the first in the lowest, in three words."""
  if bits == 3:
    lanes = (integers.reshape(integers.shape[0], -1, 32, 1) >> torch.arange(3)) & 1
    return words(lanes.reshape(integers.shape[0], -1), 1)
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


def awq_gemv(rows, cols, group=32, dtype=torch.float16):
  """AutoAWQ's gemv: [out, in], eight columns in a word, in order; zero points and scales [out, groups], groups padded with
  zeros to a word of zero points, to two for groups of 64, to four for groups of 32."""
  width = {32: 32, 64: 16}.get(group, 8)
  q, zeros, scale = codes(cols, rows), codes(cols // group, rows), scales(cols // group, rows, dtype=dtype)
  padding = -(cols // group) % width
  padded = [torch.nn.functional.pad(t.T, (0, padding)).contiguous() for t in (zeros, scale)]
  parts = {".qweight": words(q.T, 4), ".qzeros": words(padded[0], 4), ".scales": padded[1]}
  return parts, weights(q, zeros, scale, torch.arange(cols) // group)


def gptq_dynamic(first=True):
  """GPTQModel's `dynamic`: parts of a module by its name, and the rules."""
  rules = {
    r"-:.*\.down_proj": {}, r"+:.*\.gate_proj": {"bits": 8, "group_size": -1, "desc_act": False},
    r".*self_attn\.[kv]_proj": {"group_size": 16, "sym": False}, r"+:.*\.o_proj": {"bits": 3, "damp_percent": 0.1},
  }  # fmt: skip

  def parts_of(rows, cols, name):
    how = {"first": first}
    if name.endswith("gate_proj"):
      how |= {"bits": 8, "group": -1, "order": None}
    elif name.endswith(("k_proj", "v_proj")):
      how |= {"group": 16}
    elif name.endswith("o_proj"):
      how |= {"bits": 3}
    elif name.endswith("down_proj"):
      weight = scales(rows, cols, dtype=torch.bfloat16)
      return {".weight": weight}, weight
    return gptq(rows, cols, **how)

  return parts_of, rules


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


#: HQQ's packings, by bits: name, codes in a word, dtype of words.
HQQ_PACKINGS = {
  8: ("8bit_u8", 1, torch.uint8), 4: ("4bit_u8", 2, torch.uint8), 3: ("3bit_32", 10, torch.int32),
  2: ("2bit_u8", 4, torch.uint8), 1: ("1bit_u8", 8, torch.uint8),
}  # fmt: skip


def described(value):
  """What HQQ's modules store of a value that is no tensor."""
  if isinstance(value, bool):
    return torch.tensor(int(value), dtype=torch.uint8)
  if isinstance(value, str):
    return torch.tensor(list(value.encode()), dtype=torch.uint8)
  return torch.tensor(value, dtype=torch.int32 if isinstance(value, int) else None)


def hqq(rows, cols, bits=4, group=32, axis=1, dtype=torch.bfloat16):
  """HQQ's: the elements in groups, as rows of a matrix (axis 1) or as its columns; a word has codes that are as many rows
  apart as there are rows of words, the first in the highest bits. Computed in `dtype`, each step rounded."""
  packing, k, word = HQQ_PACKINGS[bits]
  shape = (rows * cols // group, group) if axis == 1 else (group, rows * cols // group)
  q = codes(*shape, bits=bits)
  each = (shape[0], 1) if axis == 1 else (1, shape[1])
  scale, zero = scales(*each, dtype=dtype), (scales(*each, dtype=torch.float32) * 100).to(dtype)
  padded = torch.nn.functional.pad(q, (0, 0, 0, -shape[0] % k))
  planes = padded.reshape(k, -1, shape[1]) << (bits * torch.arange(k - 1, -1, -1)).view(k, 1, 1)
  said = {
    "nbits": bits, "group_size": group, "axis": axis, "packing": packing, "view_as_float": False, "quant_scale": False,
    "quant_zero": False, "unpack_view_dtype": str(word), "compute_dtype": str(dtype), "offload_meta": False,
    "encoded_state_dict": True, "stores_quant_config": True, "channel_wise": True, "optimize": True, "round_zero": bits == 4,
  }  # fmt: skip
  parts = {".W_q": planes.sum(0).to(word), ".scale": scale, ".zero": zero, ".shape": torch.tensor([rows, cols])}
  value = ((q.to(dtype) - zero) * scale).reshape(rows, cols)
  return parts | {f".{name}": described(value) for name, value in said.items()}, value


def hqq_config(bits=4, group=32, axis=1):
  """The quantization_config of such weights, as transformers writes it."""
  weights = {"nbits": bits, "channel_wise": True, "group_size": group, "optimize": True, "round_zero": bits == 4,
             "axis": axis, "view_as_float": False}  # fmt: skip
  how = {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None, "offload_meta": False}
  return {"quant_method": "hqq", "quant_config": how, "skip_modules": ["lm_head"]}
