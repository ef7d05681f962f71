# SPDX-License-Identifier: Apache-2.0
"""Quantised bytes are those of the libraries that define them: casts of torch and ml_dtypes, MXFP8,
MXFP4, NVFP4, FP8 blocks and swizzled scales of torchao."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.utils import from_blocked, to_blocked

import quantised
from quantised import E2M1, E4M3

LEVELS = ["portable", "avx2", "avx512"]


def weights(rows, cols, dtype, seed=0):
  """Numbers like weights, with rows of very different sizes."""
  generator = torch.Generator().manual_seed(seed)
  numbers = torch.randn(rows, cols, generator=generator)
  sizes = torch.randint(-12, 5, (rows, 1), generator=generator)
  return (numbers * torch.exp2(sizes.float())).to(dtype)


def halves(dtype):
  """All finite 16-bit numbers, neighbours in a row."""
  bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
  numbers = bits.view(dtype)
  return torch.where(numbers.isfinite(), numbers, torch.zeros((), dtype=dtype)).reshape(32, 2048)


def same(left, right):
  assert left.shape == right.shape
  wrong = (left != right).nonzero()
  assert not len(wrong), f"{len(wrong)} differ, first at {wrong[0].tolist()}"


def bits_of(tensor):
  return tensor.contiguous().view(torch.int32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name,elements,way", [
  ("mxfp8", E4M3, quantised.rceil),
  ("mxfp8_floor", E4M3, quantised.floor),
  ("mxfp4", E2M1, quantised.rceil),
  ("mxfp4_floor", E2M1, quantised.floor),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mx_formats_are_those_of_torchao(tmp_path, name, elements, way, dtype, level):
  for seed, (rows, cols) in enumerate([(256, 1024), (3, 32), (37, 2080)]):
    tensor = weights(rows, cols, dtype, seed)
    tensor[0, :32] = 0
    tensor[-1, -32:] = -0.0
    data, scales, back = way(tensor, elements)
    ours = quantised.quantise(tensor, name, tmp_path, level)
    same(ours.scales, scales.flatten())
    same(ours.data, data)
    same(ours.back, back.to(dtype))


@pytest.mark.parametrize("name,elements,way", [
  ("mxfp8", E4M3, quantised.rceil),
  ("mxfp4", E2M1, quantised.rceil),
  ("mxfp8_floor", E4M3, quantised.floor),
  ("mxfp4_floor", E2M1, quantised.floor),
])  # fmt: skip
def test_blocks_of_all_sizes_are_those_of_torchao(tmp_path, name, elements, way):
  tensor = halves(torch.bfloat16)
  data, scales, _ = way(tensor, elements)
  ours = quantised.quantise(tensor, name, tmp_path)
  same(ours.scales, scales.flatten())
  blocks = ours.data.reshape(len(scales.flatten()), -1)
  theirs = data.reshape(blocks.shape)
  if name.endswith("_floor"):
    # torchao divides by 2^-126 where the scale is 2^-127: half of what the format says.
    least = scales.flatten() == 0
    assert least.any()
    blocks, theirs = blocks[~least], theirs[~least]
  same(blocks, theirs)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_floor", "mxfp4", "mxfp4_floor"])
def test_blocks_with_infinity_or_nan_have_the_scales_of_torchao(tmp_path, name):
  elements = E4M3 if "fp8" in name else E2M1
  way = quantised.floor if name.endswith("_floor") else quantised.rceil
  tensor = weights(4, 32, torch.float32)
  tensor[0, 3], tensor[1, 4], tensor[2, 5], tensor[2, 6] = np.inf, -np.inf, np.nan, 1.0
  data, scales, _ = way(tensor, elements)
  ours = quantised.quantise(tensor, name, tmp_path)
  same(ours.scales, scales.flatten())
  same(ours.data[[0, 1, 3]], data[[0, 1, 3]])
  assert ours.back[2].isnan().all()
  assert ours.back[0, 3] == np.inf and ours.back[1, 4] == -np.inf


def test_scales_are_rounded_up_where_a_logarithm_in_float_is_not(tmp_path):
  tensor = torch.zeros(2, 32)
  tensor[:, 0] = torch.tensor([448.0 * 2**20, np.nextafter(np.float32(448.0 * 2**20), np.inf)])
  _, scales, _ = quantised.rceil(tensor, E4M3)
  ours = quantised.quantise(tensor, "mxfp8", tmp_path)
  assert scales.flatten().tolist() == [147, 147], "torchao's logarithm is 20 for both"
  assert ours.scales.tolist() == [147, 148], "as cvt.rp.satfinite.ue8m0x2.f32 rounds"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nvfp4_is_that_of_torchao(tmp_path, dtype, level):
  for seed, (rows, cols) in enumerate([(256, 1024), (3, 16), (37, 2080)]):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(rows, cols, generator=generator).to(dtype)
    data, scales, factor = quantised.nvfp4(tensor)
    ours = quantised.quantise(tensor, "nvfp4", tmp_path, level)
    assert ours.factor.item() == factor.item()
    same(ours.scales, scales.flatten())
    same(ours.data, data)


def test_small_blocks_of_nvfp4_keep_smaller_scales_than_torchao_has(tmp_path):
  tensor = torch.zeros(1, 48)
  tensor[0, 0], tensor[0, 16] = 2688.0, 6 * 2.0**-8
  _, scales, _ = quantised.nvfp4(tensor)
  ours = quantised.quantise(tensor, "nvfp4", tmp_path)
  assert scales.flatten().tolist() == [0x7E, 0x08, 0x08], "torchao stops at 2^-6"
  assert ours.scales.tolist() == [0x7E, 0x02, 0x00]
  same(ours.back, tensor)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name,block", [
  ("fp8_block", (128, 128)),
  ("fp8_group", (1, 128)),
  ("fp8_channel", (1, 0)),
  ("fp8_tensor", (0, 0)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fp8_with_exact_scales_is_that_of_torchao(tmp_path, name, block, dtype, level):
  tensor = weights(384, 640, dtype)
  data, scales, back = quantised.fp8(tensor, block)
  ours = quantised.quantise(tensor, name, tmp_path, level)
  same(ours.scales.view(torch.int32), bits_of(scales.flatten()))
  same(ours.data, data)
  same(ours.back, back.to(dtype))


@pytest.mark.parametrize("name,block", [
  ("fp8_block_pow2", (128, 128)),
  ("fp8_group_pow2", (1, 128)),
])  # fmt: skip
def test_powers_of_two_are_the_exact_scales_rounded_up(tmp_path, name, block):
  tensor = weights(256, 512, torch.bfloat16)
  _, exact, _ = quantised.fp8(tensor, block)
  scales = torch.exp2(torch.ceil(torch.log2(exact)))
  down, across = block
  whole = scales.repeat_interleave(down, 0).repeat_interleave(across, 1)
  ours = quantised.quantise(tensor, name, tmp_path)
  same(ours.scales.view(torch.float32), scales.flatten())
  same(ours.data, (tensor.float() / whole).to(torch.float8_e4m3fn).view(torch.uint8))


def values_of(codes, largest):
  """What libraries read in bytes of E4M3 (largest 448) or codes of E2M1."""
  if largest == 448:
    return codes.view(torch.float8_e4m3fn).float()
  return torch.from_numpy(codes.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))


def window(dtype, most):
  """All numbers of 16 bits up to a magnitude, 1024 in a row."""
  numbers = halves(dtype).flatten()
  numbers = numbers[numbers.abs() <= most]
  return torch.cat([numbers, numbers.new_zeros(-len(numbers) % 1024)]).reshape(-1, 1024)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("most", [3.4e38, 2688.0, 1.0])
@pytest.mark.parametrize("name,block", [
  ("fp8_block", (128, 128)),
  ("fp8_group", (1, 128)),
  ("fp8_channel", (1, 0)),
  ("fp8_tensor", (0, 0)),
])  # fmt: skip
def test_all_halves_in_fp8_are_those_of_torchao(tmp_path, name, block, most, dtype, level):
  tensor = window(dtype, most)
  if name == "fp8_block":
    tensor = torch.cat([tensor, tensor.new_zeros(-len(tensor) % 128, 1024)])
  data, scales, back = quantised.fp8(tensor, block)
  ours = quantised.quantise(tensor, name, tmp_path, level)
  # Ours has the scale 1 where amax / 448 is 0 or is no float; torchao's floor is an epsilon.
  plain = (scales.flatten() > 2.0**-100) & scales.flatten().isfinite()
  same(ours.scales.view(torch.int32)[plain], bits_of(scales.flatten())[plain])
  down, across = (b or n for b, n in zip(block, tensor.shape))
  whole = plain.reshape(scales.shape).repeat_interleave(down, 0).repeat_interleave(across, 1)
  assert whole.any()
  same(ours.data[whole], data[whole])
  same(ours.back[whole], back.to(dtype)[whole])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("most", [2688.0, 16.0])
def test_all_halves_in_nvfp4_are_those_of_torchao(tmp_path, most, dtype, level):
  tensor = window(dtype, most)
  # torchao takes no F16; as F32 it is the same numbers.
  data, scales, factor = quantised.nvfp4(tensor.float())
  ours = quantised.quantise(tensor, "nvfp4", tmp_path, level)
  assert ours.factor.item() == factor.item()
  scales = scales.flatten()
  # torchao's scales stop at 2^-6, byte 8.
  normal = ours.scales >= 8
  assert normal.any()
  same(ours.scales[normal], scales[normal])
  blocks = ours.data.reshape(len(scales), 8)
  same(blocks[normal], data.reshape(len(scales), 8)[normal])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_of_all_halves_are_those_of_torch_and_ml_dtypes(tmp_path, dtype, level):
  numbers = halves(dtype).flatten()
  for name, largest, cast, columns in [
    ("fp8_group_pow2", 448, quantised.e4m3_of, 128),
    ("mxfp4", 6, quantised.e2m1_of, 32),
  ]:
    # The largest number at the begin of each block makes its scale 1.
    block = numbers[numbers.abs() <= largest]
    block = torch.cat([block, block.new_zeros(-len(block) % (columns - 1))])
    block = block.reshape(-1, columns - 1)
    tensor = torch.cat([block.new_full((len(block), 1), largest), block], dim=1)
    codes = torch.from_numpy(cast(tensor.float()))
    ours = quantised.quantise(tensor, name, tmp_path, level)
    # Every code but those of NaN, and back as torch and ml_dtypes read it.
    assert len(codes.unique()) == (254 if largest == 448 else 16)
    same(ours.back, values_of(codes, largest).to(dtype))
    if largest == 448:
      same(ours.data, codes)
      same(ours.data, tensor.to(torch.float8_e4m3fn).view(torch.uint8))
    else:
      same(ours.data & 15, codes[:, ::2])
      same(ours.data >> 4, codes[:, 1::2])


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("shape", [(128, 128), (1, 32), (200, 416), (384, 1056)])
def test_swizzled_scales_are_those_of_to_blocked(tmp_path, name, shape):
  tensor = weights(*shape, torch.bfloat16)
  flat = quantised.quantise(tensor, name, tmp_path)
  tiled = quantised.quantise(tensor, name + "_swizzled", tmp_path)
  scales = flat.scales.reshape(shape[0], -1)
  same(tiled.scales, to_blocked(scales, use_triton_kernel=False))
  same(from_blocked(tiled.scales, *scales.shape), scales)
  same(tiled.data, flat.data)
  same(tiled.back, flat.back)
