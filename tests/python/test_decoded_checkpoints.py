# SPDX-License-Identifier: Apache-2.0
"""Weights in forms that are decoded, and not made: AWQ, GPTQ, compressed-tensors' integers with zero
points, bitsandbytes, HQQ. Their values are those of the library that wrote them or, where it needs a GPU, of
its documented layout; every layout gets them, and nothing is copied that would describe the old form."""

import json

import bitsandbytes.functional as bnb
import pytest
import reshard.hf
import torch
from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

from code_forms import GENERATOR, awq, awq_gemv, gptq, hqq, hqq_config, scales
from dense_model import CONFIG, LAYER, MATRICES, UNKNOWN, VECTORS
from folders import command, expect_layout_of_values, ranks, read, same, write

GROUP = 32


def by_compressed_tensors(how, compressor, ordered=False):
  """What the library makes of weights, and what it reads again."""

  def parts_of(rows, cols):
    weight = (torch.randn(rows, cols, generator=GENERATOR) + 0.3).to(torch.bfloat16)
    arguments = QuantizationArgs(**how)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    blocks = weight.reshape(rows, -1, how.get("group_size", cols))
    scale, zeros = calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments)
    parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zeros}
    if ordered:
      group_of = (torch.arange(cols) // how["group_size"])[torch.randperm(cols, generator=GENERATOR)]
      parts["weight_g_idx"] = group_of.to(torch.int32)
    stored = compressor.compress(parts, scheme)
    value = compressor.decompress(dict(stored), scheme)["weight"]
    return {"." + name: t for name, t in stored.items()}, value

  return parts_of


def dequantised(packed, state):
  """As bnb.dequantize_4bit(), whose kernel for AVX-512 gives other values where blocks cross rows (0.50.2)."""
  largest = state.absmax
  if state.nested:
    largest = bnb.dequantize_blockwise(largest, state.state2) + state.offset
  codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], dim=1).flatten().long()
  table = state.code.clone()
  if state.quant_type == "fp4":
    table[8] = -0.0  # as its kernels have it
  return (table[codes].view(-1, state.blocksize) * largest.view(-1, 1)).to(state.dtype)


def by_bitsandbytes(kind, nested):
  def parts_of(rows, cols):
    weight = torch.randn(rows, cols, generator=GENERATOR).to(torch.bfloat16)
    packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
    parts = {".weight": packed} | {".weight." + name: t for name, t in state.as_dict(packed=True).items()}
    return parts, dequantised(packed, state).view(rows, cols)

  return parts_of


def llm_int8(rows, cols):
  weight = torch.randn(rows, cols, generator=GENERATOR).to(torch.float16)
  q, largest, _ = bnb.int8_vectorwise_quant(weight)
  parts = {".weight": q, ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
  return parts, bnb.int8_vectorwise_dequant(q, largest)


def groups(form, weights):
  group = {"targets": ["Linear"], "weights": weights}
  return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


INT4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}
INT8 = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}
V2 = {**GPTQ, "checkpoint_format": "gptq_v2"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
# name: (parts and values of a module, quantization_config)
FORMS = {
  "awq": (awq, AWQ),
  "awq_gemv": (awq_gemv, {**AWQ, "version": "gemv"}),
  "gptq": (gptq, GPTQ),
  "gptq_in_order": (lambda r, c: gptq(r, c, order=None), {**GPTQ, "desc_act": False}),
  "gptq_v2": (lambda r, c: gptq(r, c, first=False), V2),
  "gptq_v2_of_2_bits": (lambda r, c: gptq(r, c, bits=2, first=False), {**V2, "bits": 2}),
  "gptq_of_3_bits": (lambda r, c: gptq(r, c, bits=3), {**GPTQ, "bits": 3}),
  "gptq_v2_of_3_bits": (lambda r, c: gptq(r, c, bits=3, first=False, order=None), {**V2, "bits": 3}),
  "gptq_of_8_bits": (lambda r, c: gptq(r, c, bits=8), {**GPTQ, "bits": 8}),
  "int4": (by_compressed_tensors(INT4, PackedQuantizationCompressor), groups("pack-quantized", INT4)),
  "int8_packed": (by_compressed_tensors(INT8, PackedQuantizationCompressor), groups("pack-quantized", INT8)),
  "int8": (by_compressed_tensors(INT8, IntQuantizationCompressor), groups("int-quantized", INT8)),
  "nf4": (by_bitsandbytes("nf4", False), NF4),
  "nf4_double": (by_bitsandbytes("nf4", True), {**NF4, "bnb_4bit_use_double_quant": True}),
  "fp4": (by_bitsandbytes("fp4", True), {**NF4, "bnb_4bit_quant_type": "fp4"}),
  "hqq": (hqq, hqq_config()),
  "hqq_of_8_bits": (lambda r, c: hqq(r, c, bits=8, axis=0), hqq_config(bits=8, axis=0)),
  "hqq_of_3_bits": (lambda r, c: hqq(r, c, bits=3, group=64), hqq_config(bits=3, group=64)),
  "hqq_of_3_bits_in_columns": (lambda r, c: hqq(r, c, bits=3, axis=0), hqq_config(bits=3, axis=0)),
  "hqq_of_2_bits": (lambda r, c: hqq(r, c, bits=2), hqq_config(bits=2)),
  "hqq_of_1_bit": (lambda r, c: hqq(r, c, bits=1, group=16), hqq_config(bits=1, group=16)),
  "llm_int8": (llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
}  # fmt: skip


def checkpoint(parts_of, dtype=torch.bfloat16):
  """(tensors, values) of a small model; decoded values have the dtype."""
  plain = {
    "model.embed_tokens.weight": scales(32, 64, dtype=torch.bfloat16),
    "model.norm.weight": scales(64, dtype=torch.bfloat16),
    "lm_head.weight": scales(32, 64, dtype=torch.bfloat16),
  }
  plain |= {LAYER + name + ".weight": scales(n, dtype=torch.bfloat16) for name, n in VECTORS.items()}
  tensors, values = dict(plain), dict(plain)
  for name, shape in MATRICES.items():
    parts, value = parts_of(*shape)
    tensors |= {LAYER + name + part: t.contiguous() for part, t in parts.items()}
    values[LAYER + name + ".weight"] = value.to(dtype).contiguous()
  return tensors, values


@pytest.fixture(scope="module", params=FORMS)
def stored(request, tmp_path_factory):
  """(folder, values, quantization_config)."""
  parts_of, section = FORMS[request.param]
  tensors, values = checkpoint(parts_of)
  folder = write(tmp_path_factory.mktemp(request.param) / "in", tensors, {**CONFIG, "quantization_config": section})
  (folder / "quantize_config.json").write_text(json.dumps(section))
  return folder, values, section


def is_moved(section):
  """Whether codes are also moved as they are stored: test_moved_codes.py."""
  return section["quant_method"] in ("awq", "gptq") or section.get("format") == "pack-quantized"


def config_in(folder):
  return json.loads((folder / "config.json").read_text())


def test_values_are_those_of_the_library(stored, tmp_path):
  folder, values, section = stored
  said = command("convert", folder, tmp_path / "plain", "--to", "hf")
  assert f"7 tensors decoded from {section['quant_method']}" in said, said
  same(read(tmp_path / "plain"), values)
  assert config_in(tmp_path / "plain") == CONFIG
  assert not (tmp_path / "plain" / "quantize_config.json").exists()
  command("verify", folder, tmp_path / "plain")
  shown = command("inspect", folder)
  assert ("moved as it is" if is_moved(section) else "read only") in shown and section["quant_method"] in shown


@pytest.mark.parametrize("bits,dtype", [(2, torch.float16), (1, torch.float32)])
def test_values_of_hqq_have_the_dtype_that_its_modules_compute_in(bits, dtype, tmp_path):
  tensors, values = checkpoint(lambda rows, cols: hqq(rows, cols, bits=bits, group=16, dtype=dtype), dtype)
  section = hqq_config(bits=bits, group=16)
  folder = write(tmp_path / "in", tensors, {**CONFIG, "quantization_config": section})
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2", "fsdp:shard=3"])
def test_values_reach_every_layout(stored, layout, tmp_path):
  folder, values, _ = stored
  expect_layout_of_values(folder, values, CONFIG, layout, tmp_path)
  plan = command("plan", "--model", folder, "--from", "hf", "--to", layout)
  assert "decoded from" in plan, plan


def test_a_class_that_is_not_known_is_read_as_well(stored, tmp_path):
  folder, values, section = stored
  other = tmp_path / "in"
  write(other, read(folder), {**CONFIG, **UNKNOWN, "quantization_config": section})
  command("convert", other, tmp_path / "out", "--to", "hf")
  same(read(tmp_path / "out"), values)
  assert config_in(tmp_path / "out") == CONFIG | UNKNOWN


def test_they_are_quantised_anew_only_on_request(stored, tmp_path):
  folder, values, section = stored
  plain = write(tmp_path / "plain", values, CONFIG)
  for name, source in (("a", folder), ("b", plain)):
    command("convert", source, tmp_path / name, "--to", "hf:quant=fp8_channel,quant_method=compressed-tensors")
  same(read(tmp_path / "a"), read(tmp_path / "b"))
  if is_moved(section):
    return
  said = command("convert", folder, tmp_path / "no", "--to", "hf:quant=stored", fails=True)
  assert "which are read, but not written" in said


def test_python_loads_a_rank_of_them(stored, tmp_path):
  folder, values, section = stored
  model = reshard.open_model(folder)
  assert model.stored_as is None and section["quant_method"] in model.decoded_from
  assert model.decoded_from in repr(model) + str(model)
  command("convert", folder, tmp_path / "ranks", "--to", "fsdp:shard=2")
  loaded = reshard.hf.load(folder, "fsdp:shard=2", 1)
  same(loaded, ranks(tmp_path / "ranks")[1])


def test_biases_of_zeros_that_the_class_does_not_have_are_left_out(tmp_path):
  tensors, values = checkpoint(gptq)
  for name, (rows, _) in MATRICES.items():
    tensors[LAYER + name + ".bias"] = torch.zeros(rows, dtype=torch.float16)
  config = {**CONFIG, "quantization_config": GPTQ}
  folder = write(tmp_path / "in", tensors, config)
  command("convert", folder, tmp_path / "out", "--to", "hf")
  same(read(tmp_path / "out"), values)
  tensors[LAYER + "mlp.up_proj.bias"][5] = 1
  other = write(tmp_path / "other", tensors, config)
  assert "mlp.up_proj.bias" in command("convert", other, tmp_path / "no", "--to", "hf", fails=True)


def test_adapters_are_merged_into_the_values(stored, tmp_path):
  folder, values, _ = stored
  plain = write(tmp_path / "plain", values, CONFIG)
  name = LAYER + "mlp.up_proj"
  a, b = torch.randn(2, 64, generator=GENERATOR), torch.randn(96, 2, generator=GENERATOR)
  factors = {f"base_model.model.{name}.lora_{kind}.weight": factor for kind, factor in (("A", a), ("B", b))}
  adapter = tmp_path / "adapter"
  adapter.mkdir()
  save_file(factors, adapter / "adapter_model.safetensors")
  (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 3}')
  for out, source in (("a", folder), ("b", plain)):
    said = command("convert", source, tmp_path / out, "--to", "hf", "--merge", adapter)
    assert f"1 tensor merged with adapters, such as '{name}.weight'" in said, said
  merged = read(tmp_path / "a")
  same(merged, read(tmp_path / "b"))
  exact = values[f"{name}.weight"].double() + 3 / 2 * (b.double() @ a.double())
  assert (merged.pop(f"{name}.weight") != exact.to(torch.bfloat16)).sum() <= 1
  same(merged, {other: tensor for other, tensor in values.items() if other != f"{name}.weight"})


@pytest.mark.parametrize("group", [32, 64, 128, 160, -1])
def test_rows_of_zero_points_and_scales_are_padded_by_the_size_of_groups(group, tmp_path):
  parts, value = awq_gemv(16, 640, group=640 if group == -1 else group)
  assert {32: 4, 64: 2}.get(group, 1) == parts[".qzeros"].shape[1] and parts[".scales"].shape[1] % 8 == 0
  section = {**FORMS["awq_gemv"][1], "group_size": group}
  tensors = {"a.proj" + part: t for part, t in parts.items()}
  folder = write(tmp_path / "in", tensors, {**UNKNOWN, "dtype": "float16", "quantization_config": section})
  command("convert", folder, tmp_path / "out", "--to", "hf")
  same(read(tmp_path / "out"), {"a.proj.weight": value.to(torch.float16)})
  command("convert", folder, tmp_path / "same", "--to", "hf:quant=stored")
  same(read(tmp_path / "same"), tensors)


# What cannot be read.


def refused(tmp_path, tensors, section, layout="hf"):
  folder = write(tmp_path / "in", tensors, {**CONFIG, "quantization_config": section})
  said = command("convert", folder, tmp_path / "out", "--to", layout, fails=True)
  assert not (tmp_path / "out").exists()
  assert len(said.strip().splitlines()) == 1, said
  return said


def test_a_zero_point_that_programs_read_differently_is_refused(tmp_path):
  tensors, _ = checkpoint(lambda r, c: gptq(r, c, first=False))
  said = refused(tmp_path, tensors, GPTQ)
  assert "is stored as 15, which is 0 or 16" in said and "gptq_v2" in said


def test_codes_of_an_engine_are_not_made_of_rows_in_order(tmp_path):
  tensors, _ = checkpoint(awq_gemv)
  said = refused(tmp_path, tensors, FORMS["awq_gemv"][1], "vllm:tp=1,quant=awq")
  assert "no engine that is known loads 'model.layers.0.self_attn.q_proj.weight' so" in said, said


@pytest.mark.parametrize(
  ("part", "value", "said"),
  [
    ("view_as_float", torch.tensor(1, dtype=torch.uint8), "codes as floats (view_as_float)"),
    ("quant_zero", torch.tensor(1, dtype=torch.uint8), "quantised scales (quant_zero)"),
    ("channel_wise", torch.tensor(0, dtype=torch.uint8), "one scale of the tensor (channel_wise)"),
    ("packing", torch.tensor(list(b"9bit_u8"), dtype=torch.uint8), "packing 9bit_u8"),
    ("compute_dtype", torch.tensor(list(b"torch.int8"), dtype=torch.uint8), "compute_dtype torch.int8"),
    ("group_size", torch.tensor(0, dtype=torch.int32), "in groups of 0 along axis 1"),
    ("shape", torch.tensor([96, -64]), "in groups of 32 along axis 1"),
    ("shape", torch.tensor([96, 128]), "of [96, 128] packed as 4bit_u8 it must be U8 [192, 32]"),
    ("axis", torch.tensor(0, dtype=torch.int32), "packed as 4bit_u8 it must be U8 [16, 192]"),
    ("scale", scales(192, 1), "it must be BF16 [192, 1]"),
    ("zero", None, "without 'model.layers.0.mlp.up_proj.zero'"),
  ],
)
def test_modules_of_hqq_that_say_something_else_are_refused(part, value, said, tmp_path):
  tensors, _ = checkpoint(hqq)
  name = f"{LAYER}mlp.up_proj.{part}"
  if value is None:
    del tensors[name]
  else:
    tensors[name] = value
  assert said in refused(tmp_path, tensors, hqq_config(), "vllm:tp=1")


def test_a_column_without_a_group_is_refused(tmp_path):
  tensors, _ = checkpoint(gptq)
  tensors[LAYER + "mlp.up_proj.g_idx"][7] = 2
  assert "mlp.up_proj.weight': column 7 is in group 2 of 2" in refused(tmp_path, tensors, GPTQ)


def test_a_state_that_does_not_fit_its_codes_is_refused(tmp_path):
  tensors, _ = checkpoint(by_bitsandbytes("nf4", False))
  name = LAYER + "mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
  for text, what in (
    ('{"blocksize": 64, "dtype": "bfloat16", "shape": [96, 66]}', "says [96, 66], but"),
    ('{"blocksize": 0, "dtype": "bfloat16", "shape": [96, 64]}', "blocksize must be a positive integer"),
    ("[1", "quant_state"),
  ):
    tensors[name] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    case = tmp_path / str(len(text))
    case.mkdir()
    assert what in refused(case, tensors, NF4)


def test_a_tied_head_that_is_stored_as_codes_is_refused(tmp_path):
  tensors, _ = checkpoint(gptq)
  del tensors["lm_head.weight"]
  tensors |= {"lm_head" + part: t for part, t in gptq(32, 64)[0].items()}
  folder = write(tmp_path / "in", tensors, {**CONFIG, "tie_word_embeddings": True, "quantization_config": GPTQ})
  said = command("convert", folder, tmp_path / "out", "--to", "vllm:tp=1", fails=True)
  assert "'lm_head.weight' is stored by itself, as gptq" in said


def test_weights_without_a_part_are_moved_as_they_are(tmp_path):
  tensors, _ = checkpoint(awq)
  del tensors[LAYER + "mlp.up_proj.scales"]
  section = FORMS["awq"][1]
  folder = write(tmp_path / "in", tensors, {**CONFIG, "quantization_config": section})
  said = command("convert", folder, tmp_path / "out", "--to", "hf")
  assert "mlp.up_proj.qweight' is stored as awq, 4 bits in groups of 32 without" in said, said
  same(read(tmp_path / "out"), tensors)
  assert config_in(tmp_path / "out") == config_in(folder)


def test_room_for_decoded_weights_is_asked_for_first(stored, tmp_path, monkeypatch):
  folder, _, _ = stored
  monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
  said = command("convert", folder, tmp_path / "out", "--to", "hf", fails=True)
  assert "TMPDIR" in said and not (tmp_path / "out").exists()
