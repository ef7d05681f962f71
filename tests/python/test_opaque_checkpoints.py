# SPDX-License-Identifier: Apache-2.0
"""Weights in forms that are moved but not read: every layout without options moves every byte and keeps
the config, and every option that would change values refuses them by name."""

import copy
import json

import pytest
import safetensors.torch
import torch

from dense_model import CONFIG, LAYER, MATRICES, UNKNOWN, VECTORS
from folders import command, ranks, read, same, write

GENERATOR = torch.Generator().manual_seed(3)
E4M3 = torch.float8_e4m3fn


def floats(*shape, dtype=torch.float32):
  # Not exact in BF16, so that a cast would show.
  return (torch.rand(shape, generator=GENERATOR) * 0.01 + 1e-4).to(dtype)


def codes(*shape, dtype=torch.int32):
  return torch.randint(0, 100, shape, generator=GENERATOR).to(dtype)


def e4m3(*shape):
  return codes(*shape, dtype=torch.uint8).view(E4M3)


def awq(rows, cols):
  return {
    ".qweight": codes(cols, rows // 8), ".qzeros": codes(cols // 32, rows // 8),
    ".scales": floats(cols // 32, rows, dtype=torch.float16),
  }  # fmt: skip


def gptq(rows, cols):
  return {
    ".qweight": codes(cols // 8, rows), ".qzeros": codes(cols // 32, rows // 8),
    ".scales": floats(cols // 32, rows, dtype=torch.float16), ".g_idx": codes(cols),
  }  # fmt: skip


def packed(rows, cols):
  return {
    ".weight_packed": codes(rows, cols // 8), ".weight_shape": torch.tensor([rows, cols]),
    ".weight_scale": floats(rows, cols // 32), ".weight_zero_point": codes(rows // 8, cols // 32),
    ".weight_g_idx": codes(cols),
  }  # fmt: skip


def int8(rows, cols):
  return {
    ".weight": codes(rows, cols, dtype=torch.int8), ".weight_scale": floats(rows, 1),
    ".input_scale": floats(1), ".input_zero_point": codes(1, dtype=torch.int8),
  }  # fmt: skip


def fbgemm(rows, cols):
  return {
    ".weight": e4m3(rows, cols), ".weight_scale": floats(rows, 1), ".input_scale_ub": floats(1),
  }  # fmt: skip


def nf4(rows, cols):
  return {
    ".weight": codes(rows * cols // 2, 1, dtype=torch.uint8), ".weight.quant_map": floats(16),
    ".weight.absmax": codes(rows * cols // 64, dtype=torch.uint8),
    ".weight.nested_absmax": floats(8), ".weight.nested_quant_map": floats(256),
  }  # fmt: skip


def llm_int8(rows, cols):
  return {
    ".weight": codes(rows, cols, dtype=torch.int8), ".SCB": floats(rows),
    ".weight_format": torch.tensor(1, dtype=torch.uint8),  # tiles for a GPU
  }  # fmt: skip


def fp8_blocks(rows, cols):
  return {
    ".weight": e4m3(rows, cols), ".weight_scale_inv": floats(1, 1), ".input_scale": floats(1),
  }  # fmt: skip


def nvfp4(rows, cols):
  return {
    ".weight_packed": codes(rows, cols // 2, dtype=torch.uint8),
    ".weight_scale": e4m3(rows, cols // 16), ".weight_global_scale": floats(1),
    ".input_global_scale": floats(1),
  }  # fmt: skip


def bitnet(rows, cols):
  return {
    ".weight": codes(rows // 4, cols, dtype=torch.uint8),
    ".weight_scale": floats(1, dtype=torch.bfloat16),
  }  # fmt: skip


def tensor_wise(rows, cols):
  return {".weight": e4m3(rows, cols), ".weight_scale": floats(), ".input_scale": floats()}


def only(dtype):
  return lambda rows, cols: {".weight": floats(rows, cols).to(dtype)}


def bf16_of_bitnet(rows, cols):
  return only(torch.bfloat16)(rows, cols)


def groups(**formats):
  return {
    "quant_method": "compressed-tensors",
    "config_groups": {name: {"targets": [name], "weights": how} for name, how in formats.items()},
  }  # fmt: skip


INT4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
# name: (parts of a module, quantization_config, is the class known, a dtype that is named)
FORMS = {
  "awq_gemv_fast": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}, True, "I32"),
  "gptq_of_5_bits": (gptq, {"quant_method": "gptq", "bits": 5, "group_size": 32}, True, "I32"),
  "int4": (packed, {**groups(Linear=INT4, other=INT8), "format": "pack-quantized"}, True, "I64"),
  "nf4_without_a_state": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, True, "U8"),
  "llm_int8": (llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}, True, "I8"),
  "mixed": (
    tensor_wise, {**groups(Linear=FLOAT8, other=INT8), "format": "float-quantized"}, True, "F8_E4M3",
  ),
  "modelopt_mixed": (
    tensor_wise, {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, True, "F8_E4M3",
  ),
  "bitnet": (bitnet, {"quant_method": "bitnet"}, True, "U8"),
  "bitnet_online": (bf16_of_bitnet, {"quant_method": "bitnet"}, True, "bitnet"),
  "nvfp4_of_unknown": (
    nvfp4, {**groups(Linear={**FLOAT8, "num_bits": 4}), "format": "nvfp4-pack-quantized"}, False, "F8_E4M3",
  ),
  "awq_of_unknown": (awq, {"quant_method": "awq", "bits": 4}, False, "I32"),
  "int8_without_a_word": (int8, None, False, "I8"),
  "gptq_without_a_word": (gptq, None, False, "I32"),
  "fp8_without_scales": (only(E4M3), None, True, "F8_E4M3"),
  "f64": (only(torch.float64), None, True, "F64"),
  "f64_of_unknown": (only(torch.float64), None, False, "F64"),
}  # fmt: skip
MOVES = ("hf", "hf:shards=2", "fsdp:shard=2", "fsdp:shard=3", "dcp:shard=2")
CHANGES = (
  "hf:quant=fp8_block", "hf:quant=mxfp8", "hf:quant=fp8_channel,quant_method=compressed-tensors",
  "hf:dtype=bfloat16", "hf:dtype=float32", "fsdp:shard=2,dtype=bfloat16", "dcp:shard=2,dtype=bfloat16",
  "vllm:tp=1", "vllm:tp=2,dtype=bfloat16", "vllm:tp=2,quant=fp8_channel", "sglang:tp=1",
  "megatron:tp=1,dtype=bfloat16", "megatron:tp=1,quant=mxfp8", "torch_dist:tp=1,dtype=bfloat16",
)  # fmt: skip


def config_of(section, known):
  config = copy.deepcopy(CONFIG if known else {**CONFIG, **UNKNOWN})
  return config if section is None else {**config, "quantization_config": section}


def tensors_of(parts_of):
  tensors = {
    "model.embed_tokens.weight": floats(32, 64, dtype=torch.bfloat16),
    "model.norm.weight": floats(64, dtype=torch.bfloat16),
    "lm_head.weight": floats(32, 64, dtype=torch.bfloat16),
  }
  for name, size in VECTORS.items():
    tensors[LAYER + name + ".weight"] = floats(size, dtype=torch.bfloat16)
  for name, shape in MATRICES.items():
    tensors.update({LAYER + name + part: t for part, t in parts_of(*shape).items()})
  return tensors


@pytest.fixture(scope="module", params=FORMS)
def stored(request, tmp_path_factory):
  """(folder, tensors, config, a dtype or method that refusals name)."""
  parts_of, section, known, named = FORMS[request.param]
  tensors, config = tensors_of(parts_of), config_of(section, known)
  folder = write(tmp_path_factory.mktemp(request.param) / "in", tensors, config)
  return folder, tensors, config, named


def config_in(folder):
  return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("layout", MOVES)
def test_every_byte_moves_and_the_config_stays(stored, layout, tmp_path):
  folder, tensors, config, _ = stored
  command("convert", folder, tmp_path / "out", "--to", layout)
  command("verify", folder, tmp_path / "out")
  assert config_in(tmp_path / "out") == config
  command("convert", tmp_path / "out", tmp_path / "home", "--to", "hf")
  same(read(tmp_path / "home"), tensors)
  assert config_in(tmp_path / "home") == config


@pytest.mark.parametrize("layout", CHANGES)
def test_an_option_that_changes_values_is_refused_by_name(stored, layout, tmp_path):
  folder, tensors, config, named = stored
  said = command("convert", folder, tmp_path / "out", "--to", layout, fails=True)
  assert len(said.strip().splitlines()) == 1, said
  assert not (tmp_path / "out").exists()
  plan = command("plan", "--model", folder, "--from", "hf", "--to", layout, fails=True)
  assert "would change values" in said or "needs a config, but" in said, said
  if "would change values" in said:
    assert config.get("quantization_config", {}).get("quant_method", "") in said, said
    assert named == "bitnet" or any(f"'{name}'" in said for name in tensors), said
    assert named in said and named in plan, said


def test_ranks_of_such_a_checkpoint_refuse_them_too(stored, tmp_path):
  folder, _, _, named = stored
  command("convert", folder, tmp_path / "ranks", "--to", "fsdp:shard=2")
  for layout in ("hf:quant=fp8_block", "hf:dtype=float16", "fsdp:shard=1,dtype=bfloat16"):
    said = command("convert", tmp_path / "ranks", tmp_path / "out", "--to", layout, fails=True)
    assert named in said and "would change values" in said, said


def test_rules_that_name_a_dtype_are_refused_too(stored, tmp_path):
  folder, _, _, named = stored
  rules = tmp_path / "rules.json"
  rules.write_text('{"rules": [{"match": "*"}]}')
  command("convert", folder, tmp_path / "out", "--to", f"rules:{rules}")
  command("verify", folder, tmp_path / "out")
  said = command("convert", folder, tmp_path / "no", "--to", f"rules:{rules},dtype=bfloat16", fails=True)
  assert named in said and "dtype=bfloat16 would change values" in said, said
  rules.write_text('{"rules": [{"match": "*", "dtype": "bfloat16"}]}')
  said = command("convert", folder, tmp_path / "no", "--to", f"rules:{rules}", fails=True)
  assert named in said and 'dtype of the rule "*" would change values' in said, said


# Forms that are read, whatever the class of the model.

NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
READ = {
  "fp8": (fp8_blocks, BLOCKS, "hf:quant=fp8_block,quant_method=fp8"),
  "nvfp4": (
    nvfp4, {**groups(Linear=NVFP4), "format": "nvfp4-pack-quantized"}, "hf:quant=nvfp4_divisor,quant_method=compressed-tensors",
  ),
  "fbgemm": (
    fbgemm, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "hf:quant=fp8_channel,quant_method=fbgemm_fp8",
  ),
  "int8": (int8, {**groups(Linear=INT8), "format": "int-quantized"}, "hf:quant=int8_channel"),
}  # fmt: skip


@pytest.mark.parametrize("form", READ)
def test_quantised_weights_of_a_class_that_is_not_known_are_read_as_of_one_that_is(form, tmp_path):
  parts_of, section, stored = READ[form]
  tensors = tensors_of(parts_of)
  known = write(tmp_path / "known", tensors, config_of(section, True))
  unknown = write(tmp_path / "unknown", tensors, config_of(section, False))
  for layout in ("hf", "hf:dtype=float16", "hf:quant=fp8_tensor,quant_method=compressed-tensors", stored):
    out = [tmp_path / f"{name}-{layout}" for name in ("of-known", "of-unknown")]
    command("convert", known, out[0], "--to", layout)
    said = command("convert", unknown, out[1], "--to", layout)
    assert "config not understood" in said
    same(read(out[1]), read(out[0]))
    assert config_in(out[1]) == config_in(out[0]) | UNKNOWN
  same(read(tmp_path / f"of-unknown-{stored}"), tensors)
  assert "quantization_config" not in config_in(tmp_path / "of-unknown-hf")
  for name, folder in (("known", known), ("unknown", unknown)):
    command("convert", folder, tmp_path / f"{name}-ranks", "--to", "fsdp:shard=2")
    command("convert", tmp_path / f"{name}-ranks", tmp_path / f"{name}-home", "--to", "hf")
  same(read(tmp_path / "unknown-home"), read(tmp_path / "known-home"))


def test_of_a_class_that_is_not_known_all_parts_must_be_read_or_all_stay(tmp_path):
  tensors = tensors_of(fp8_blocks) | {"model.vision.proj.qweight": codes(8, 4)}
  folder = write(tmp_path / "in", tensors, config_of(BLOCKS, False))
  command("convert", folder, tmp_path / "out", "--to", "hf")
  same(read(tmp_path / "out"), tensors)
  assert config_in(tmp_path / "out") == config_of(BLOCKS, False)
  said = command("convert", folder, tmp_path / "no", "--to", "hf:dtype=bfloat16", fails=True)
  assert "would change values" in said


# Scales are not weights either.


def fp8_checkpoint(folder, scales, parts_of=fp8_blocks, section=BLOCKS):
  tensors = tensors_of(parts_of)
  for name in list(tensors):
    if name.endswith("k_proj.weight"):
      tensors[name.removesuffix("weight") + "k_scale"] = floats(*scales)
  return write(folder, tensors, config_of(section, True)), tensors


@pytest.mark.parametrize("scales", [(), (1,)])
@pytest.mark.parametrize("layout", ["fsdp:shard=2,dtype=float16", "dcp:shard=1,dtype=float16", "hf:dtype=float16"])  # fmt: skip
def test_scales_of_activations_keep_their_dtype(scales, layout, tmp_path):
  def parts_of(rows, cols):
    parts = fp8_blocks(rows, cols)
    return {**parts, ".input_scale": floats(*scales)}

  folder, tensors = fp8_checkpoint(tmp_path / "in", scales, parts_of)
  command("convert", folder, tmp_path / "out", "--to", layout)
  if layout.startswith("dcp"):
    command("convert", tmp_path / "out", tmp_path / "home", "--to", "hf")
    made = read(tmp_path / "home")
  elif layout.startswith("fsdp"):
    made = ranks(tmp_path / "out")[1 if scales == () else 0]
  else:
    made = read(tmp_path / "out")
  assert made[LAYER + "mlp.up_proj.weight"].dtype == torch.float16
  kept = [n for n in made if n.endswith("_scale")]
  assert kept
  for name in kept:
    assert torch.equal(made[name].reshape(-1), tensors[name].reshape(-1)), name
    assert made[name].dtype == torch.float32, name


def test_modelopt_in_fp8_reaches_fsdp(tmp_path):
  section = {"quant_method": "modelopt", "quant_algo": "FP8"}
  tensors = tensors_of(tensor_wise)
  folder = write(tmp_path / "in", tensors, config_of(section, True))
  command("convert", folder, tmp_path / "out", "--to", "fsdp:shard=2")
  for held in ranks(tmp_path / "out").values():
    scale = LAYER + "mlp.up_proj.input_scale"
    assert held[scale].shape == () and torch.equal(held[scale], tensors[scale])
    assert held[LAYER + "mlp.up_proj.weight"].dtype == torch.bfloat16


# The config that is written.


def numbers(dtype):
  """The same numbers in each call, not exact in BF16."""
  generator = torch.Generator().manual_seed(5)
  shapes = {name: t.shape for name, t in tensors_of(only(torch.bfloat16)).items()}
  return {name: torch.rand(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("layout", ["hf", "dcp:shard=2"])
def test_a_config_names_the_dtype_of_its_files(known, layout, tmp_path):
  folder = write(tmp_path / "in", numbers(torch.float32), config_of(None, known))
  said = command("convert", folder, tmp_path / "out", "--to", layout)
  assert "its dtype is float32 now, as most values are stored; it was bfloat16" in said
  assert config_in(tmp_path / "out") == {**config_of(None, known), "dtype": "float32"}
  halves = "hf:dtype=bfloat16"
  assert "its dtype" not in command("convert", folder, tmp_path / "halves", "--to", halves)
  assert config_in(tmp_path / "halves") == config_of(None, known)
  made = read(tmp_path / "halves")
  same(made, {name: t.to(torch.bfloat16) for name, t in numbers(torch.float32).items()})


def test_a_section_that_was_left_over_is_left_out(tmp_path):
  plain = numbers(torch.bfloat16)
  sections = [BLOCKS, {"quant_method": "awq", "bits": 4}, {**groups(Linear=INT4), "format": "x"}]
  for known in (True, False):
    for i, section in enumerate(sections):
      name = f"{known}{i}"
      folder = write(tmp_path / name, plain, config_of(section, known))
      said = command("convert", folder, tmp_path / (name + "hf"), "--to", "hf")
      assert "left out its quantization_config" in said and section["quant_method"] in said
      assert config_in(tmp_path / (name + "hf")) == config_of(None, known)
      same(read(tmp_path / (name + "hf")), plain)
      command("convert", folder, tmp_path / (name + "fp8"), "--to", "hf:quant=fp8_block")
      if known:
        command("convert", folder, tmp_path / (name + "vllm"), "--to", "vllm:tp=2")


def test_a_section_about_caches_stays_with_plain_weights(tmp_path):
  section = {**BLOCKS, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
  config = config_of(section, False)
  folder = write(tmp_path / "in", numbers(torch.bfloat16), config)
  command("convert", folder, tmp_path / "out", "--to", "hf")
  assert config_in(tmp_path / "out") == config


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.uint8])
def test_powers_of_two_may_be_bytes(dtype, tmp_path):
  section = {**BLOCKS, "scale_fmt": "ue8m0"}
  exponents = torch.tensor([[0], [1], [126], [127], [254]], dtype=torch.uint8)
  byte_scales, floats_of = {}, {}

  def parts_of(rows, cols):
    byte = exponents[torch.randint(0, 5, (1,), generator=GENERATOR)]
    return {".weight": e4m3(rows, cols), ".weight_scale_inv": byte}

  for name, t in tensors_of(parts_of).items():
    is_scale = name.endswith("_inv")
    byte_scales[name] = t.view(dtype) if is_scale else t
    floats_of[name] = t.view(torch.float8_e8m0fnu).float() if is_scale else t
  folder = write(tmp_path / "in", byte_scales, config_of(section, True))
  reference = write(tmp_path / "ref", floats_of, config_of(section, True))
  command("verify", folder, reference)
  for layout in ("hf", "hf:quant=fp8_block_pow2", "vllm:tp=1,quant=fp8_block_pow2,quant_grid=tensor", "fsdp:shard=2"):
    name = layout.replace(":", "").replace(",", "")
    command("convert", folder, tmp_path / name, "--to", layout)
    command("convert", reference, tmp_path / (name + "ref"), "--to", layout)
    command("verify", tmp_path / name, tmp_path / (name + "ref"))
  again = tmp_path / "hfquant=fp8_block_pow2"
  same(read(again), floats_of)
  assert config_in(again) == config_of(section, True)
  command("convert", tmp_path / "vllmtp=1quant=fp8_block_pow2quant_grid=tensor", tmp_path / "home", "--to", "hf:quant=fp8_block_pow2")  # fmt: skip
  same(read(tmp_path / "home"), floats_of)


@pytest.mark.parametrize("layout", ["hf", "hf:shards=2", "fsdp:shard=3", "dcp:shard=2", "dcp:shard=2,format=safetensors"])  # fmt: skip
def test_tensors_without_elements_move_like_others(layout, tmp_path):
  tensors = {
    "a.weight": floats(4, 4), "e0.weight": floats(0, 4), "e1.weight": floats(4, 0),
    "e2": floats(0), "e3": floats(2, 0, 3), "s": floats(), "i": codes(0),
  }  # fmt: skip
  for name, held in (("all", tensors), ("only", {"e0.weight": floats(0, 4)})):
    folder = tmp_path / name
    folder.mkdir()
    safetensors.torch.save_file(held, folder / "model.safetensors")
    for step in (("plan", "--model", folder), ("run", "--verify", "--model", folder)):
      command(*step, "--from", "hf", "--to", layout)
    command("convert", folder, tmp_path / (name + "out"), "--to", layout)
    command("verify", folder, tmp_path / (name + "out"))
    command("convert", tmp_path / (name + "out"), tmp_path / (name + "home"), "--to", "hf")
    home = read(tmp_path / (name + "home"))
    assert {n: (t.dtype, t.shape) for n, t in home.items()} == {
      n: (t.dtype, t.shape) for n, t in held.items()
    }
