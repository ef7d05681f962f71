# SPDX-License-Identifier: Apache-2.0
"""Symmetric integers of compressed-tensors: what its own compressor writes is read, moved, and comes
home; what reshard quantises has the bytes that its quantiser gives, in the dtype of the weights."""

import json

import pytest
import torch
from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

import quantised as tool
from folders import command, expect_layout_of_values, ranks, read, same, write
from moe_model import CONFIG, compressed_tensors, plain_checkpoint, quantised

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False}
INT8 = {**INT4, "num_bits": 8}
FORMS = {
  "int4_group32": ("pack-quantized", {**INT4, "strategy": "group", "group_size": 32}),
  "int4_group64": ("pack-quantized", {**INT4, "strategy": "group", "group_size": 64}),
  "int4_channel": ("pack-quantized", {**INT4, "strategy": "channel"}),
  "int8_packed_channel": ("pack-quantized", {**INT8, "strategy": "channel"}),
  "int8_channel": ("int-quantized", {**INT8, "strategy": "channel"}),
}  # fmt: skip
DENSE = {
  **{key: value for key, value in CONFIG.items() if "expert" not in key and key[:3] not in ("moe", "mlp")},
  "architectures": ["Qwen3ForCausalLM"],
  "model_type": "qwen3",
}  # fmt: skip


def compressor_of(form):
  return PackedQuantizationCompressor if FORMS[form][0] == "pack-quantized" else IntQuantizationCompressor


def by_the_library(weights, form):
  """The parts of a module that the library makes of its weights."""
  arguments = QuantizationArgs(**FORMS[form][1])
  rows = weights.shape[0]
  blocks = weights.reshape(rows, -1, FORMS[form][1].get("group_size", weights.shape[1]))
  scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments)
  scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
  return compressor_of(form).compress({"weight": weights, "weight_scale": scales}, scheme)


def values_of(form, parts):
  scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**FORMS[form][1]))
  return compressor_of(form).decompress(dict(parts), scheme)["weight"]


def config_of(form, config, **weights):
  return compressed_tensors(FORMS[form][0], {**FORMS[form][1], **weights}, config)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  return plain_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=FORMS)
def stored(request, plain, tmp_path_factory):
  """(form, folder, tensors, values) of a mixture of experts, written by the library."""
  form = request.param

  def parts_of(name, tensor):
    parts = by_the_library(tensor, form)
    front = name.removesuffix("weight")
    return {front + part: t for part, t in parts.items()}, values_of(form, parts)

  tensors, values = quantised(plain[1], parts_of)
  folder = write(tmp_path_factory.mktemp("ct") / "hf", tensors, config_of(form, CONFIG))
  return form, folder, tensors, values


def test_values_are_those_of_the_library(stored, tmp_path):
  form, folder, _, values = stored
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  assert json.loads((tmp_path / "plain" / "config.json").read_text()) == CONFIG
  assert json.loads(command("inspect", folder, "--json"))["stored_as"] == form


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2,ep=2,etp=1", "fsdp:shard=2"])
def test_values_reach_every_layout(stored, layout, tmp_path):
  _, folder, _, values = stored
  expect_layout_of_values(folder, values, CONFIG, layout, tmp_path)


def test_the_same_form_is_kept_byte_for_byte(stored, tmp_path):
  form, folder, tensors, _ = stored
  command("convert", folder, tmp_path / "again", "--to", f"hf:quant={form}")
  same(read(tmp_path / "again"), tensors)
  before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
  assert before == after
  command("verify", folder, tmp_path / "again")


def test_plain_weights_get_the_bytes_of_the_library(plain, stored, tmp_path):
  form, _, tensors, _ = stored
  command("convert", plain[0], tmp_path / "made", "--to", f"hf:quant={form}")
  same(read(tmp_path / "made"), tensors)
  config = json.loads((tmp_path / "made" / "config.json").read_text())["quantization_config"]
  read_again = QuantizationConfig.model_validate(config)
  assert read_again.format == FORMS[form][0]
  weights = read_again.config_groups["group_0"].weights
  assert {key: getattr(weights, key) for key in INT4} == {key: FORMS[form][1][key] for key in INT4}
  assert weights.strategy == FORMS[form][1]["strategy"]
  assert weights.group_size == FORMS[form][1].get("group_size")


def test_trainers_ranks_are_quantised_on_the_way(plain, stored, tmp_path):
  form, _, tensors, _ = stored
  command("convert", plain[0], tmp_path / "ranks", "--to", "megatron:tp=2,pp=2")
  command("convert", tmp_path / "ranks", tmp_path / "made", "--to", f"hf:quant={form}")
  same(read(tmp_path / "made"), tensors)


def dense(form, tmp_path):
  """(folder, tensors) of a dense model."""
  config = tmp_path / "config.json"
  config.write_text(json.dumps(DENSE))
  command("synth", config, tmp_path / "synth")
  tensors, _ = quantised(
    read(tmp_path / "synth"),
    lambda name, t: (
      {name.removesuffix("weight") + part: p for part, p in by_the_library(t, form).items()},
      t,
    ),
  )
  return write(tmp_path / "dense", tensors, config_of(form, DENSE)), tensors


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["vllm:tp=2", "sglang:tp=2"])
def test_data_and_scales_are_cut_and_come_home(form, layout, tmp_path):
  folder, tensors = dense(form, tmp_path)
  text = f"{layout},quant={form},quant_grid=tensor"
  said = command("plan", "--model", folder, "--from", f"hf:quant={form}", "--to", text)
  assert "moves data and scales" in said
  command("convert", folder, tmp_path / "cut", "--to", text)
  command("verify", folder, tmp_path / "cut")
  command("convert", tmp_path / "cut", tmp_path / "home", "--to", f"hf:quant={form}")
  same(read(tmp_path / "home"), tensors)
  held = ranks(tmp_path / "cut")[1]
  front = "model.layers.1.self_attn."
  part = "weight_packed" if FORMS[form][0] == "pack-quantized" else "weight"
  q, k, v = (tensors[f"{front}{which}_proj.{part}"].chunk(2)[1] for which in "qkv")
  assert torch.equal(held[front + "qkv_proj." + part], torch.cat((q, k, v)))
  q, k, v = (tensors[f"{front}{which}_proj.weight_scale"].chunk(2)[1] for which in "qkv")
  assert torch.equal(held[front + "qkv_proj.weight_scale"], torch.cat((q, k, v)))


def refused(*arguments):
  said = command(*arguments, fails=True)
  assert len(said.strip().splitlines()) == 1, said
  return said


def test_packed_experts_of_engines_are_refused(stored, tmp_path):
  form, folder, _, _ = stored
  arguments = ("convert", folder, tmp_path / "out", "--to", f"vllm:tp=2,quant={form}")
  if FORMS[form][0] == "pack-quantized":
    assert "input first" in refused(*arguments)
    assert not (tmp_path / "out").exists()
  else:
    command(*arguments)


def test_a_cut_inside_a_group_names_the_group(tmp_path):
  folder, _ = dense("int4_group64", tmp_path)
  said = refused("convert", folder, tmp_path / "out", "--to", "vllm:tp=4,quant=int4_group128")
  assert "not divisible by the quantisation block of 128" in said


def test_megatron_holds_no_integers(tmp_path):
  folder, _ = dense("int4_channel", tmp_path)
  said = refused("convert", folder, tmp_path / "out", "--to", "megatron:tp=2,quant=int4_channel")
  assert "modules hold no integers" in said


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("form", FORMS)
def test_scales_have_the_dtype_of_the_weights(form, dtype, tmp_path):
  """Scales have the dtype of the weights that were quantised."""
  weights = torch.randn(64, 320, generator=torch.Generator().manual_seed(3)).to(dtype)
  parts = by_the_library(weights, form)
  assert parts["weight_scale"].dtype == dtype
  name = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}[dtype]
  config = config_of(form, {"architectures": ["X"], "model_type": "x", "dtype": name})
  folder = write(tmp_path / "hf", {f"a.q_proj.{part}": t for part, t in parts.items()}, config)
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), {"a.q_proj.weight": values_of(form, parts)})
  # Scales that reshard makes have the dtype of the weights, too, whatever the config says.
  plain = write(tmp_path / "weights", {"a.q_proj.weight": weights}, {"architectures": ["X"], "model_type": "x"})
  command("convert", plain, tmp_path / "made", "--to", f"hf:quant={form}")
  same(read(tmp_path / "made"), read(folder))


def test_what_contradicts_its_config_is_not_read(tmp_path):
  form = "int4_group32"
  parts = by_the_library(torch.randn(64, 320).bfloat16(), form)
  plain_config = {"architectures": ["X"], "model_type": "x", "dtype": "bfloat16"}

  def copied(name, more, **weights):
    """It moves as it is, and is refused where values would change."""
    tensors = {f"a.{part}": t for part, t in {**parts, **more}.items()}
    folder = write(tmp_path / name, tensors, config_of(form, plain_config, **weights))
    command("convert", folder, tmp_path / (name + "-out"), "--to", "hf")
    same(read(tmp_path / (name + "-out")), tensors)
    return refused("convert", folder, tmp_path / "no", "--to", "hf:dtype=float32")

  zeros = torch.zeros(8, 9, dtype=torch.int32)
  assert "is not read here" in copied("zero", {"weight_zero_point": zeros}, symmetric=False)
  order = torch.arange(319, dtype=torch.int32)
  assert "is not read here" in copied("order", {"weight_g_idx": order}, actorder="group")


def test_an_engine_with_integers_is_updated_with_its_files_own_tensors_alone(tmp_path):
  from reshard import UnsupportedError
  from reshard.engines.quantisation import Quantisation

  parts = by_the_library(torch.randn(64, 320).bfloat16(), "int4_group32")
  config = config_of("int4_group32", {"architectures": ["X"], "model_type": "x", "dtype": "bfloat16"})
  folder = write(tmp_path / "hf", {f"a.{part}": t for part, t in parts.items()}, config)
  assert Quantisation.of_checkpoint(folder, [f"a.{part}" for part in parts]) is None
  with pytest.raises(UnsupportedError, match="int4_group32; engines with integer weights are not updated"):
    Quantisation.of_checkpoint(folder, ["a.weight"])


def weights_in(dtype):
  generator = torch.Generator().manual_seed(11)
  exponents = torch.randint(-9, 4, (256, 1), generator=generator)
  weights = torch.randn(256, 512, generator=generator) * torch.exp2(exponents)
  weights[3] = 0
  weights[5, :40] = torch.tensor([7.5, -7.5, 0.5, 1.5, 2.5, -0.5, -1.5, 6.5]).repeat(5)
  return weights.to(torch.bfloat16).to(dtype)


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_set_gives_the_bytes_of_the_quantiser(form, level, tmp_path):
  weights = weights_in(torch.bfloat16)
  parts = by_the_library(weights, form)
  ours = tool.quantise(weights, form, tmp_path, level)
  data = parts.get("weight_packed", parts.get("weight"))
  assert torch.equal(ours.data.flatten(), data.contiguous().view(torch.uint8).flatten())
  assert torch.equal(ours.scales.view(torch.bfloat16), parts["weight_scale"].flatten())
  assert torch.equal(ours.back, values_of(form, parts))
