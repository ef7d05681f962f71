# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose weights are in several formats: compressed-tensors' groups, ModelOpt's mixed
precision, and DeepSeek-V4's FP8 beside MXFP4. Values are those of the libraries, and quant=stored keeps
every tensor as it is."""

import copy
import json
import pathlib
import re
import shlex
import subprocess

import pytest
import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

import program
from folders import command, expect_layout_of_values, read, same, write
from moe_model import CONFIG, E4M3, packed, plain_checkpoint, quantised, random_e4m3
from test_modelopt_checkpoints import stored_of, values_of

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
EXPERTS = r"re:.*mlp\.experts\..*"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  return plain_checkpoint(tmp_path_factory.mktemp("plain"))


def is_expert(name):
  return ".experts." in name


def by_the_library(name, tensor):
  """Experts in INT4 groups, other linear layers in FP8 channels, and the values that they have."""
  compressor = PackedQuantizationCompressor if is_expert(name) else FloatQuantizationCompressor
  arguments = QuantizationArgs(**(INT4 if is_expert(name) else FLOAT8))
  blocks = tensor.reshape(tensor.shape[0], -1, arguments.group_size or tensor.shape[1])
  scales, zeros = calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments)
  scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
  parts = compressor.compress({"weight": tensor, "weight_scale": scales, "weight_zero_point": zeros}, scheme)
  parts.pop("weight_zero_point", None)
  if not is_expert(name):
    parts["weight_scale"] = parts["weight_scale"].float()  # Scales of FP8 in BF16 are written as F32.
  values = compressor.decompress(dict(parts), scheme)["weight"].to(torch.bfloat16)
  return {name.removesuffix("weight") + part: t for part, t in parts.items()}, values


def groups_config(config, **also):
  def group(target, weights, form):
    return {"targets": [target], "weights": weights, "input_activations": None, "format": form}

  how = {
    "quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*mlp.gate$"], "kv_cache_scheme": None,
    "config_groups": {
      "group_0": group("Linear", {**FLOAT8, **also}, "float-quantized"),
      "group_1": group(EXPERTS, INT4, "pack-quantized"),
    },
  }  # fmt: skip
  return copy.deepcopy({**config, "quantization_config": how})


def modelopt_config(tensors, beside=False):
  layers = {
    name.removesuffix(".weight"): {"quant_algo": algo_of(name)}
    for name, tensor in tensors.items()
    if name.endswith(".weight") and tensor.dtype in (E4M3, torch.uint8)
  }
  how = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": layers}
  return how if beside else {**CONFIG, "quantization_config": {**how, "quant_method": "modelopt"}}


def algo_of(name):
  return "NVFP4" if is_expert(name) else "MXFP8" if ".layers.0." in name else "FP8"


def by_modelopt(tensors):
  """(stored, values) of FP8, MXFP8 and NVFP4."""
  generator = torch.Generator().manual_seed(17)

  def parts_of(name, tensor):
    parts = stored_of(algo_of(name), tensor, generator)
    out = {name + end: part for end, part in parts.items()}
    if algo_of(name) != "MXFP8":
      out[name.removesuffix("weight") + "input_scale"] = torch.rand((), generator=generator)
    return out, values_of(algo_of(name), parts)

  return quantised(tensors, parts_of)


@pytest.fixture(scope="module", params=["compressed-tensors", "modelopt", "modelopt beside"])
def stored(request, plain, tmp_path_factory):
  """(what inspect says, folder, tensors, values)."""
  root = tmp_path_factory.mktemp("mixed")
  if request.param == "compressed-tensors":
    tensors, values = quantised(plain[1], by_the_library)
    folder = write(root / "hf", tensors, groups_config(CONFIG))
    return "int4_group32 and fp8_channel", folder, tensors, values
  tensors, values = by_modelopt(plain[1])
  beside = request.param.endswith("beside")
  folder = write(root / "hf", tensors, CONFIG if beside else modelopt_config(tensors))
  if beside:
    config = {"producer": {"name": "modelopt"}, "quantization": modelopt_config(tensors, True)}
    (folder / "hf_quant_config.json").write_text(json.dumps(config))
  return "nvfp4 and fp8_tensor and mxfp8", folder, tensors, values


def test_values_are_those_of_each_format(stored, tmp_path):
  formats, folder, _, values = stored
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  assert json.loads((tmp_path / "plain" / "config.json").read_text()) == CONFIG
  assert json.loads(command("inspect", folder, "--json"))["stored_as"] == formats


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2,ep=2,etp=1", "fsdp:shard=2"])
def test_values_reach_every_layout(stored, layout, tmp_path):
  _, folder, tensors, values = stored
  if layout.startswith("fsdp"):  # Keeps the scales of inputs.
    values = {**values, **{name: t for name, t in tensors.items() if name.endswith("input_scale")}}
  expect_layout_of_values(folder, values, CONFIG, layout, tmp_path)


def test_what_is_stored_is_kept_byte_for_byte(stored, tmp_path):
  _, folder, tensors, _ = stored
  command("convert", folder, tmp_path / "again", "--to", "hf:quant=stored")
  same(read(tmp_path / "again"), tensors)
  before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
  assert before == after
  command("verify", folder, tmp_path / "again")


def test_one_format_for_all_is_quantised_anew(stored, tmp_path):
  formats, folder, _, values = stored
  said = command("convert", folder, tmp_path / "a", "--to", "hf:quant=fp8_block")
  assert f"from {formats} to fp8_block" in said
  command("convert", write(tmp_path / "plain", values, CONFIG), tmp_path / "b", "--to", "hf:quant=fp8_block")
  same(read(tmp_path / "a"), read(tmp_path / "b"))


def test_ranks_have_no_name_for_several_formats(stored, tmp_path):
  formats, folder, _, _ = stored
  error = command("convert", folder, tmp_path / "ranks", "--to", "vllm:tp=2,quant=stored", fails=True)
  assert f"the checkpoint has weights as {formats}" in error


def test_stored_is_a_format_of_its_own_for_a_uniform_checkpoint(plain, tmp_path):
  command("convert", plain[0], tmp_path / "fp8", "--to", "hf:quant=fp8_channel")
  command("convert", tmp_path / "fp8", tmp_path / "a", "--to", "vllm:tp=2,quant=stored")
  command("convert", tmp_path / "fp8", tmp_path / "b", "--to", "vllm:tp=2,quant=fp8_channel")
  index = json.loads((tmp_path / "a" / "reshard.json").read_text())
  assert index == json.loads((tmp_path / "b" / "reshard.json").read_text())
  command("verify", tmp_path / "a", tmp_path / "b")
  error = command("convert", plain[0], tmp_path / "c", "--to", "hf:quant=stored", fails=True)
  assert "the weights of the checkpoint are not quantised" in error
  error = command("convert", tmp_path / "fp8", tmp_path / "c", "--to", "hf:quant=stored,quant_skip=x", fails=True)
  assert "leave quant_grid, quant_skip and quant_method out" in error


def test_scales_that_fit_two_formats_are_refused(tmp_path, plain):
  """Blocks of 128 and of 96 columns give 160 columns two scales each."""
  generator = torch.Generator().manual_seed(1)

  def parts_of(name, tensor):
    down, across = -(-tensor.shape[0] // 128), -(-tensor.shape[1] // 128)
    scales = torch.rand((down, across), generator=generator)
    return {name: random_e4m3(tensor.shape, generator), name + "_scale": scales}, tensor

  tensors, _ = quantised(plain[1], parts_of)
  config = groups_config(CONFIG, strategy="block", block_structure=[128, 128])
  other = copy.deepcopy(config["quantization_config"]["config_groups"]["group_0"])
  other["weights"]["block_structure"] = [128, 112]
  config["quantization_config"]["config_groups"]["group_1"] = other
  folder = write(tmp_path / "hf", tensors, config)
  error = command("convert", folder, tmp_path / "out", "--to", "vllm:tp=2", fails=True)
  assert "its scales fit both" in error


def test_a_module_that_is_not_as_said_is_refused(plain, tmp_path):
  tensors, _ = by_modelopt(plain[1])
  config = modelopt_config(tensors)
  name = "model.layers.1.self_attn.q_proj"
  config["quantization_config"]["quantized_layers"][name]["quant_algo"] = "FP8_PB_WO"
  folder = write(tmp_path / "hf", tensors, config)
  error = command("convert", folder, tmp_path / "out", "--to", "vllm:tp=2", fails=True)
  assert f"the scales of '{name}.weight' must be" in error


DEEPSEEK = {
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
  "expert_dtype": "fp4",
  "quantization_config": {
    "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
  },
}  # fmt: skip


def deepseek_v4(generator):
  """(tensors, values) in the names of the published files; values by transformers."""
  decode = Fp8Dequantize(None)
  tensors = {
    "embed.weight": torch.randn(40, 256, generator=generator).to(torch.bfloat16),
    "layers.0.hc_attn_scale": torch.randn(3, generator=generator),
    "layers.0.ffn.gate.tid2eid": torch.randint(0, 4, (40, 2), generator=generator),
    "norm.weight": torch.ones(256, dtype=torch.bfloat16),
  }
  values = dict(tensors)

  def exponents(*shape):
    bytes_ = torch.randint(118, 130, shape, generator=generator, dtype=torch.uint8)
    return bytes_.view(torch.float8_e8m0fnu)

  def add(module, data, scales):
    tensors[f"layers.0.{module}.weight"], tensors[f"layers.0.{module}.scale"] = data, scales
    values[f"layers.0.{module}.weight"] = decode._dequantize_one(data, scales, torch.bfloat16)

  for module, shape in {"attn.wq_a": (128, 256), "attn.wo_b": (256, 384), "ffn.shared_experts.w1": (128, 256)}.items():
    add(module, random_e4m3(shape, generator), exponents(shape[0] // 128, shape[1] // 128))
  for expert in range(2):
    for part, shape in {"w1": (96, 256), "w3": (96, 256), "w2": (256, 96)}.items():
      codes = packed(shape, generator).view(torch.int8)
      add(f"ffn.experts.{expert}.{part}", codes, exponents(shape[0], shape[1] // 32))
  return tensors, values


def test_deepseek_v4_is_read_as_transformers_reads_it(tmp_path):
  tensors, values = deepseek_v4(torch.Generator().manual_seed(5))
  folder = write(tmp_path / "hf", tensors, DEEPSEEK)
  assert json.loads(command("inspect", folder, "--json"))["stored_as"] == "mxfp4 and fp8_block_pow2"
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  config = json.loads((tmp_path / "plain" / "config.json").read_text())
  assert "quantization_config" not in config


def test_deepseek_v4_is_kept_as_it_is(tmp_path):
  tensors, _ = deepseek_v4(torch.Generator().manual_seed(5))
  folder = write(tmp_path / "hf", tensors, DEEPSEEK)
  command("convert", folder, tmp_path / "again", "--to", "hf:quant=stored")
  again = read(tmp_path / "again")
  for name, tensor in tensors.items():
    if tensor.dtype == torch.float8_e8m0fnu and again[name].dtype == torch.float32:
      tensors[name] = tensor.float()  # Scales of FP8 are F32, as docs/checkpoints.md says.
  same(again, tensors)
  assert json.loads((tmp_path / "again" / "config.json").read_text()) == DEEPSEEK


def test_the_commands_of_the_page_work(tmp_path):
  write(tmp_path / "DeepSeek-V4-Flash", deepseek_v4(torch.Generator().manual_seed(5))[0], DEEPSEEK)
  page = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
  commands = re.findall(r"^    reshard (.* DeepSeek-V4-Flash.*)$", page, re.MULTILINE)
  said = []
  for words in (shlex.split(line, comments=True) for line in commands):
    done = subprocess.run([program.binary(), *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said.append(done.stdout)
  assert len(said) == 3
  assert re.search("# (stored as .*)", page).group(1).strip() in said[0]


def test_an_index_that_names_no_format_is_refused(plain, tmp_path):
  command("convert", plain[0], tmp_path / "ranks", "--to", "vllm:tp=2,quant=fp8_channel")
  index = tmp_path / "ranks" / "reshard.json"
  index.write_text(index.read_text().replace("quant=fp8_channel", "quant=stored"))
  error = command("convert", tmp_path / "ranks", tmp_path / "out", "--to", "hf", fails=True)
  assert "quant=stored names no format" in error
