# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of compressed-tensors: values are what its own compressors decompress, configs are what
its own classes read, bytes are moved as they are, also where shards cut blocks, and come home."""

import json

import pytest
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

import quantised as tool
from folders import command, expect_layout_of_values, ranks, read, same, write
from moe_model import CONFIG, compressed_tensors, is_linear, packed, plain_checkpoint, quantised, random_e4m3, unpacked

FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
FLOAT4 = {**FLOAT8, "num_bits": 4}
UINT8 = {"scale_dtype": "torch.uint8"}
FORMS = {
  "tensor": ("fp8_tensor", "float-quantized", {**FLOAT8, "strategy": "tensor"}),
  "channel": ("fp8_channel", "float-quantized", {**FLOAT8, "strategy": "channel"}),
  "channel_bf16": ("fp8_channel", "float-quantized", {**FLOAT8, "strategy": "channel"}),
  "block": (
    "fp8_block", "float-quantized",
    {**FLOAT8, "strategy": "block", "block_structure": [128, 128]},
  ),
  "mxfp8": ("mxfp8", "mxfp8-quantized", {**FLOAT8, **UINT8, "strategy": "group", "group_size": 32}),
  "mxfp4": (
    "mxfp4", "mxfp4-pack-quantized", {**FLOAT4, **UINT8, "strategy": "group", "group_size": 32},
  ),
  "nvfp4": (
    "nvfp4_divisor", "nvfp4-pack-quantized",
    {**FLOAT4, "strategy": "tensor_group", "group_size": 16},
  ),
}  # fmt: skip
COMPRESSORS = {
  "float-quantized": FloatQuantizationCompressor,
  "mxfp8-quantized": MXFP8QuantizationCompressor,
  "mxfp4-pack-quantized": MXFP4PackedCompressor,
  "nvfp4-pack-quantized": NVFP4PackedCompressor,
}


def scheme_of(form):
  return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**FORMS[form][2]))


def stored_of(form, shape, generator):
  """Random parts of a module, by their names there."""
  rows, cols = shape

  def floats(*shape):
    return torch.rand(shape, generator=generator) * 0.01 + 1e-4

  if form == "nvfp4":
    return {
      "weight_packed": packed(shape, generator),
      "weight_scale": random_e4m3((rows, cols // 16), generator).abs(),
      "weight_global_scale": torch.rand(1, generator=generator) * 3000 + 1,
    }
  if form in ("mxfp4", "mxfp8"):
    scales = torch.randint(110, 130, (rows, cols // 32), generator=generator, dtype=torch.uint8)
    if form == "mxfp4":
      return {"weight_packed": packed(shape, generator), "weight_scale": scales}
    return {"weight": random_e4m3(shape, generator), "weight_scale": scales}
  scales = {
    "tensor": (1,), "channel": (rows, 1), "channel_bf16": (rows, 1),
    "block": (-(-rows // 128), -(-cols // 128)),
  }[form]  # fmt: skip
  scales = floats(*scales)
  if form == "channel_bf16":
    scales = scales.to(torch.bfloat16)
  return {"weight": random_e4m3(shape, generator), "weight_scale": scales}


def values_of(form, parts):
  """What the library makes of a module's parts."""
  if form == "block":  # its decompressor wants whole blocks
    data, scales = parts["weight"].float(), parts["weight_scale"]
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (data * wide[: data.shape[0], : data.shape[1]]).to(torch.bfloat16)
  made = COMPRESSORS[FORMS[form][1]].decompress(dict(parts), scheme_of(form))
  return made["weight"].to(torch.bfloat16)


def config_of(form):
  return compressed_tensors(*FORMS[form][1:])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  return plain_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=FORMS)
def stored(request, plain, tmp_path_factory):
  """(form, folder, tensors, values)."""
  form, generator = request.param, torch.Generator().manual_seed(5)

  def parts_of(name, tensor):
    parts = stored_of(form, tensor.shape, generator)
    value = values_of(form, parts)
    if form == "tensor":
      parts["input_scale"] = torch.rand(1, generator=generator)
    front = name.removesuffix("weight")
    return {front + part: t for part, t in parts.items()}, value

  tensors, values = quantised(plain[1], parts_of)
  folder = write(tmp_path_factory.mktemp("ct") / "hf", tensors, config_of(form))
  return form, folder, tensors, values


def f32_scales(tensors):
  """Scales in BF16 come home as F32, which have the same values."""
  return {
    k: t.float() if k.endswith("weight_scale") and t.dtype == torch.bfloat16 else t
    for k, t in tensors.items()
  }


def test_values_are_those_of_the_library(stored, tmp_path):
  form, folder, _, values = stored
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  assert json.loads((tmp_path / "plain" / "config.json").read_text()) == CONFIG
  assert json.loads(command("inspect", folder, "--json"))["stored_as"] == FORMS[form][0]


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2,ep=2,etp=1"])
def test_values_reach_every_layout(stored, layout, tmp_path):
  _, folder, _, values = stored
  expect_layout_of_values(folder, values, CONFIG, layout, tmp_path)


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2,pp=2", "sglang:tp=2"])
def test_data_and_scales_are_cut_and_come_home(stored, layout, tmp_path):
  form, folder, tensors, _ = stored
  quant = FORMS[form][0]
  text = f"{layout},quant={quant},quant_grid=tensor"
  said = command("plan", "--model", folder, "--from", f"hf:quant={quant}", "--to", text)
  assert "moves data and scales" in said
  command("convert", folder, tmp_path / "cut", "--to", text)
  command("verify", folder, tmp_path / "cut")
  home = f"hf:quant={quant},quant_method=compressed-tensors"
  command("convert", tmp_path / "cut", tmp_path / "home", "--to", home)
  kept = {k: t for k, t in tensors.items() if not k.endswith("input_scale")}
  same(read(tmp_path / "home"), f32_scales(kept))
  config = json.loads((tmp_path / "home" / "config.json").read_text())["quantization_config"]
  read_again = QuantizationConfig.model_validate(config)
  assert read_again.format == FORMS[form][1] and "lm_head" in read_again.ignore
  weights = read_again.config_groups["group_0"].weights
  assert weights.strategy == FORMS[form][2]["strategy"]
  assert weights.num_bits == FORMS[form][2]["num_bits"]


def test_the_same_form_is_kept_with_all_it_says(stored, tmp_path):
  form, folder, tensors, _ = stored
  command("convert", folder, tmp_path / "again", "--to", f"hf:quant={FORMS[form][0]}")
  same(read(tmp_path / "again"), f32_scales(tensors))
  before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
  assert before == after


def test_engines_hold_what_vllm_names(stored, tmp_path):
  form, folder, tensors, _ = stored
  if form != "nvfp4":
    return
  text = "vllm:tp=1,quant=nvfp4_divisor,quant_grid=tensor"
  command("convert", folder, tmp_path / "cut", "--to", text)
  held = ranks(tmp_path / "cut")[0]
  front = "model.layers.1.self_attn."
  q, k, v = (tensors[f"{front}{which}_proj.weight_packed"] for which in "qkv")
  assert torch.equal(held[front + "qkv_proj.weight_packed"], torch.cat((q, k, v)))
  factors = [tensors[f"{front}{which}_proj.weight_global_scale"] for which in "qkv"]
  assert torch.equal(held[front + "qkv_proj.weight_global_scale"], torch.cat(factors))
  assert held["model.layers.1.mlp.experts.routed_experts.w13_weight_packed"].shape == (4, 384, 160)


def vllm_loads_experts(weights, inputs):
  """vLLM's CompressedTensorsMoEMethod.get_moe_method and CompressedTensorsW8A8Fp8MoEMethod (0.32):
  FP8 only in blocks or in two pairs of strategies; NVFP4 with inputs as they are or in NVFP4 too."""
  if weights.num_bits == 4 or weights.strategy == "group":
    mx = weights.strategy == "group" and weights.group_size == 32
    nv = weights.strategy == "tensor_group" and weights.group_size == 16 and inputs is None
    return nv or (mx and (weights.num_bits == 4 or weights.scale_dtype == torch.uint8))
  pairs = {("tensor", "tensor"), ("channel", "token")}
  return weights.strategy == "block" or (weights.strategy, inputs.strategy) in pairs


def test_plain_weights_are_written_and_the_library_reads_them(plain, stored, tmp_path):
  form, _, tensors, _ = stored
  text = f"hf:quant={FORMS[form][0]},quant_method=compressed-tensors"
  command("convert", plain[0], tmp_path / "packed", "--to", text)
  config = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
  group = QuantizationConfig.model_validate(config).config_groups["group_0"]
  assert vllm_loads_experts(group.weights, group.input_activations)
  made = read(tmp_path / "packed")
  assert made.keys() == {name for name in tensors if not name.endswith("input_scale")}
  command("convert", tmp_path / "packed", tmp_path / "back", "--to", "hf")
  want = {}
  for name, tensor in plain[1].items():
    want[name] = tensor
    if is_linear(name):
      front = name.removesuffix("weight")
      ends = ("weight", "weight_packed", "weight_scale", "weight_global_scale")
      want[name] = values_of(form, {end: made[front + end] for end in ends if front + end in made})
      error = (want[name].float() - tensor.float()).abs().max()
      assert error <= tensor.float().abs().max() / 6, name
      if form == "nvfp4":
        amax = tensor.float().abs().max()
        made_of = made[front + "weight_global_scale"] * amax
        assert torch.allclose(made_of, torch.tensor(448.0 * 6), rtol=3e-7), name
  same(read(tmp_path / "back"), want)


def test_what_is_wrong_is_said_in_one_line(stored, tmp_path):
  form, folder, tensors, _ = stored

  def refused(name, tensors, change=lambda how: None):
    config = config_of(form)
    change(config["quantization_config"])
    write(tmp_path / name, tensors, config)
    to = ("--to", "vllm:tp=2")
    said = command("convert", tmp_path / name, tmp_path / (name + "-out"), *to, fails=True)
    assert len(said.strip().splitlines()) == 1, said
    return said

  lost = next(key for key in tensors if key.endswith("weight_scale"))
  less = {k: t for k, t in tensors.items() if k != lost}
  assert f"without its scales '{lost}'" in refused("less", less)
  assert f"'{lost}' is F64" in refused("wide", {**tensors, lost: torch.ones(7, 9).double()})
  group = "group_0"

  def weights(**more):
    return lambda how: how["config_groups"][group]["weights"].update(more)

  assert "int of" in refused("int", tensors, weights(type="int"))
  assert "not symmetric" in refused("zero", tensors, weights(symmetric=False))
  assert "num_bits" in refused("bits", tensors, weights(num_bits="8"))
  assert "transform_config" in refused(
    "turned", tensors, lambda how: how.update(transform_config={"config_groups": {}})
  )
  assert "is empty" in refused("none", tensors, lambda how: how.update(config_groups={}))
  assert "without weights" in refused(
    "preset", tensors, lambda how: how.update(config_groups={"FP8": ["Linear"]})
  )


# The library's quantiser. docs/quantisation.md says where it rounds otherwise; here that is measured.

E4M3_SCALES = {"scale_dtype": torch.float8_e4m3fn}
QUANTISED = {
  "fp8_tensor": {**FLOAT8, "strategy": "tensor"},
  "fp8_channel": {**FLOAT8, "strategy": "channel"},
  "fp8_block": {**FLOAT8, "strategy": "block", "block_structure": [128, 128]},
  "mxfp8": {**FLOAT8, "scale_dtype": torch.uint8, "strategy": "group", "group_size": 32},
  "mxfp4": {**FLOAT4, "scale_dtype": torch.uint8, "strategy": "group", "group_size": 32},
  "nvfp4_divisor": {**FLOAT4, **E4M3_SCALES, "strategy": "tensor_group", "group_size": 16},
}


def blocks_of(weights, form):
  """The weights with the dimensions of a block last."""
  rows, cols = weights.shape
  if form == "fp8_tensor":
    return weights.reshape(1, -1)
  if form == "fp8_channel":
    return weights.reshape(rows, 1, cols)
  if form == "fp8_block":
    return weights.reshape(rows // 128, 128, cols // 128, 128).transpose(1, 2).flatten(2)
  return weights.reshape(rows, -1, 16 if form == "nvfp4_divisor" else 32)


def by_the_library(weights, form):
  """(codes as numbers, scales, divisor)."""
  arguments, blocks = QuantizationArgs(**QUANTISED[form]), blocks_of(weights, form)
  divisor = None
  if form == "nvfp4_divisor":
    divisor = generate_gparam(weights.min(), weights.max())
  least, most = blocks.amin(-1), blocks.amax(-1)
  scales, _ = calculate_qparams(least, most, arguments, global_scale=divisor)
  return quantize(weights, scales, None, arguments, global_scale=divisor).float(), scales, divisor


def weights_in(dtype):
  generator = torch.Generator().manual_seed(11)
  exponents = torch.randint(-9, 4, (256, 1), generator=generator)
  weights = torch.randn(256, 512, generator=generator) * torch.exp2(exponents)
  return weights.to(torch.bfloat16).to(dtype)


@pytest.mark.parametrize("form", ["fp8_tensor", "fp8_channel", "fp8_block"])
def test_fp8_of_f32_weights_is_that_of_its_quantiser(form, tmp_path):
  weights = weights_in(torch.float32)
  codes, scales, _ = by_the_library(weights, form)
  ours = tool.quantise(weights, form, tmp_path)
  assert torch.equal(ours.scales.view(torch.float32), scales.flatten())
  assert torch.equal(ours.data.view(torch.float8_e4m3fn).float(), codes)


@pytest.mark.parametrize("form", ["fp8_tensor", "fp8_channel", "fp8_block"])
def test_of_bf16_weights_its_scales_are_ours_in_bf16(form, tmp_path):
  weights = weights_in(torch.bfloat16)
  codes, scales, _ = by_the_library(weights, form)
  ours = tool.quantise(weights, form, tmp_path)
  assert scales.dtype == torch.bfloat16
  assert torch.equal(ours.scales.view(torch.float32).bfloat16(), scales.flatten())
  # Each element is at most one code away, for it was divided by another scale.
  step = (ours.data.view(torch.int8) & 127).int() - (codes.to(torch.float8_e4m3fn).view(torch.int8) & 127).int()
  assert step.abs().max() == 1 and (step != 0).float().mean() < 0.1


def test_of_nvfp4_scales_and_divisor_are_those_of_its_quantiser(tmp_path):
  weights = weights_in(torch.float32)
  codes, scales, divisor = by_the_library(weights, "nvfp4_divisor")
  ours = tool.quantise(weights, "nvfp4_divisor", tmp_path)
  assert torch.equal(ours.factor, divisor)
  assert torch.equal(ours.scales, scales.to(torch.float8_e4m3fn).view(torch.uint8).flatten())
  differs = unpacked(ours.data) != codes
  assert differs.float().mean() < 0.004
  # Where they differ, the element lies between both codes but for the rounding of a product.
  scale = (scales.float() / divisor).repeat_interleave(16, 1)
  middle = (unpacked(ours.data) + codes) / 2 * scale
  assert torch.allclose(weights[differs], middle[differs], rtol=1e-6)


def test_of_bf16_weights_its_nvfp4_divisor_is_ours_in_bf16(tmp_path):
  weights = weights_in(torch.bfloat16)
  divisor = by_the_library(weights, "nvfp4_divisor")[2]
  ours = tool.quantise(weights, "nvfp4_divisor", tmp_path)
  assert torch.equal(ours.factor.bfloat16().float(), divisor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form, bumps", [("mxfp8", 1.75), ("mxfp4", 1.5)])
def test_its_powers_of_two_double_at_another_amax(form, bumps, dtype, tmp_path):
  weights = weights_in(dtype)
  _, scales, _ = by_the_library(weights, form)
  amax = blocks_of(weights, form).float().abs().amax(-1).flatten()
  mantissa = amax / torch.exp2(amax.log2().floor())
  floor = tool.quantise(weights, form + "_floor", tmp_path).scales.int()
  assert torch.equal(scales.float().log2().int().flatten() + 127, floor + (mantissa >= 1.75))
  assert torch.equal(tool.quantise(weights, form, tmp_path).scales.int(), floor + (mantissa > bumps))
