# SPDX-License-Identifier: Apache-2.0
"""Runs quantise_file on a tensor, and says with real libraries what its bytes must be."""

import dataclasses
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import torch
from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.quantization import quant_primitives

import program

NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
E4M3, E2M1 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2


@dataclasses.dataclass
class Quantised:
  data: torch.Tensor
  scales: torch.Tensor
  factor: torch.Tensor
  back: torch.Tensor


def quantise(tensor, name, folder, level=None):
  """What the program under test makes of a matrix; bytes as uint8."""
  rows, cols = tensor.shape
  source, out = folder / "numbers", folder / "out"
  source.write_bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())
  tool = pathlib.Path(program.binary()).parent / "quantise_file"
  argv = [tool, name, NAMES[tensor.dtype], rows, cols, source, out]
  environment = {**os.environ, **({"RESHARD_SIMD": level} if level else {})}
  done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, env=environment)
  assert done.returncode == 0, done.stderr

  def read(suffix):
    raw = np.frombuffer(pathlib.Path(f"{out}.{suffix}").read_bytes(), np.uint8)
    return torch.from_numpy(raw.copy())

  back = read("back").view(tensor.dtype).reshape(rows, cols)
  factor = read("factor").view(torch.float32)
  return Quantised(read("data").reshape(rows, -1), read("scales"), factor, back)


def mx(tensor, elements, mode):
  """(data, scales, dequantised) of torchao's MX formats."""
  scales, data = mx_tensor.to_mx(tensor, elements, 32, mode)
  back = mx_tensor.to_dtype(data, scales, elements, 32, torch.float32)
  return data.view(torch.uint8), scales.view(torch.uint8), back


def rceil(tensor, elements):
  return mx(tensor, elements, ScaleCalculationMode.RCEIL)


def floor(tensor, elements):
  return mx(tensor, elements, ScaleCalculationMode.FLOOR)


def nvfp4(tensor):
  """(data, scales, factor) of torchao's NVFP4."""
  factor = nvfp4_tensor.per_tensor_amax_to_scale(tensor.float().abs().max())
  scales, data = nvfp4_tensor.nvfp4_quantize(tensor, 16, factor)
  return data, scales.view(torch.uint8), factor


def fp8(tensor, block):
  """(data, scales, dequantised) of torchao's blocks with float scales."""
  numbers = tensor.float()
  block = [b or n for b, n in zip(block, tensor.shape)]
  scales = quant_primitives._choose_scale_float8(numbers, block)
  data = quant_primitives._quantize_affine_float8(numbers, scales)
  back = quant_primitives._dequantize_affine_float8(data, scales)
  return data.view(torch.uint8), scales, back


def e4m3_of(values):
  """The bytes of ml_dtypes, which does not saturate, for values that it need not."""
  return values.numpy().clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def e2m1_of(values):
  return values.numpy().clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
