# SPDX-License-Identifier: Apache-2.0
"""The module, and the weights of a checkpoint, that the loaders of tracing_loaders.py work on."""

import torch
from torch import nn

F32, BF16, F16, F8, I64 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64
WEIGHTS = {
  "w": ((8, 6), F32),
  "v": ((8, 6), BF16),
  "u": ((8, 8), F32),
  "row": ((6,), F32),
  "one": ((), F32),
  "ids": ((8,), I64),
  "f8": ((8, 6), F8),
  "flags": ((8,), torch.bool),
}


class Gate(nn.Module):
  def __init__(self):
    super().__init__()
    self.register_buffer("tid2eid", torch.zeros(8, dtype=I64))
    self.register_buffer("narrow", torch.zeros(8, dtype=torch.int32))
    self.register_buffer("steps", torch.zeros(2, dtype=I64))
    self.register_buffer("order", torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]), persistent=False)


class Module(nn.Module):
  """Room for what the loaders place."""

  def __init__(self):
    super().__init__()
    empty = {
      "p": ((8, 6), F32), "q": ((8, 6), BF16), "h": ((8, 6), F16), "s": ((8, 8), F32), "t": ((6, 8), F32),
      "big": ((16, 8), F32), "stack": ((3, 8, 6), F32), "raw": ((8, 6), torch.uint8),
      "scalar": ((), F32), "bits": ((8, 6), torch.int32),
    }  # fmt: skip
    for name, (shape, dtype) in empty.items():
      self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False))
    self.register_buffer("scale", torch.zeros(6))
    self.register_buffer("flags", torch.zeros(8, dtype=torch.bool))
    self.gate = Gate()
    self.alias = self.p.data[:4]
    self.note = None
