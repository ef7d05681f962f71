# SPDX-License-Identifier: Apache-2.0
"""ModelOpt's checkpoints: values are those of a decoder in torch, bytes are moved as they are, also
where shards cut blocks, and come home."""

import json

import pytest
import safetensors.torch
import torch
from compressed_tensors.quantization import QuantizationConfig

from folders import command, expect_layout_of_values, ranks, read, same, write
from moe_model import (
  CONFIG,
  E4M3,
  is_linear,
  packed,
  plain_checkpoint,
  quantised,
  random_e4m3,
  unpacked,
)

# Format, and what scales a weight [out, in] has.
ALGOS = {
  "FP8": "fp8_tensor",
  "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
  "FP8_PB_WO": "fp8_block",
  "MXFP8": "mxfp8",
  "NVFP4": "nvfp4",
}
HAVE_INPUT_SCALES = ("FP8", "NVFP4")


def stored_of(algo, tensor, generator):
  """What a weight is stored as: (name's end -> tensor)."""
  rows, cols = tensor.shape

  def floats(*shape):
    return torch.rand(shape, generator=generator) * 0.01 + 1e-4

  if algo == "NVFP4":
    scales = random_e4m3((rows, cols // 16), generator).abs()
    return {"": packed((rows, cols), generator), "_scale": scales, "_scale_2": floats()}
  data = random_e4m3((rows, cols), generator)
  if algo == "FP8":
    return {"": data, "_scale": floats()}
  if algo == "FP8_PER_CHANNEL_PER_TOKEN":
    return {"": data, "_scale": floats(rows)}
  if algo == "FP8_PB_WO":
    return {"": data, "_scale": floats(-(-rows // 128), 1, -(-cols // 128), 1)}
  scales = torch.randint(110, 130, (rows, cols // 32), generator=generator, dtype=torch.uint8)
  return {"": data, "_scale": scales}


def values_of(algo, stored):
  """BF16 of data x scale (x factor), in float."""
  scales = stored["_scale"]
  if algo == "NVFP4":
    by = (scales.float() * stored["_scale_2"]).repeat_interleave(16, 1)
    return (unpacked(stored[""]) * by).to(torch.bfloat16)
  data = stored[""].float()
  if algo == "FP8_PER_CHANNEL_PER_TOKEN":
    scales = scales[:, None]
  if algo == "FP8_PB_WO":
    wide = scales[:, 0, :, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)
    scales = wide[: data.shape[0], : data.shape[1]]
  if algo == "MXFP8":
    scales = torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
  return (data * scales).to(torch.bfloat16)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  return plain_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=ALGOS)
def stored(request, plain, tmp_path_factory):
  """(algo, folder, tensors, values)."""
  algo, generator = request.param, torch.Generator().manual_seed(11)

  def parts_of(name, tensor):
    parts = stored_of(algo, tensor, generator)
    out = {name + end: part for end, part in parts.items()}
    if algo in HAVE_INPUT_SCALES:
      out[name.removesuffix("weight") + "input_scale"] = torch.rand((), generator=generator)
    return out, values_of(algo, parts)

  tensors, values = quantised(plain[1], parts_of)
  how = {
    "quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head", "*mlp.gate"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.47.0"},
  }  # fmt: skip
  for layer in range(2):
    for which, scale in (("k", 0.5), ("v", 0.25)):
      name = f"model.layers.{layer}.self_attn.{which}_proj.{which}_scale"
      tensors[name] = values[name] = torch.tensor(scale)
  config = {**CONFIG, "quantization_config": how}
  return algo, write(tmp_path_factory.mktemp("modelopt") / "hf", tensors, config), tensors, values


def test_values_are_those_of_the_definition(stored, tmp_path):
  algo, folder, _, values = stored
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  assert json.loads((tmp_path / "plain" / "config.json").read_text()) == CONFIG
  said = json.loads(command("inspect", folder, "--json"))
  assert said["stored_as"] == ALGOS[algo] and said["quantization"] == "modelopt"


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2,ep=2,etp=1", "sglang:tp=2"])
def test_values_reach_every_layout(stored, layout, tmp_path):
  _, folder, _, values = stored
  expect_layout_of_values(folder, values, CONFIG, layout, tmp_path)


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2,pp=2", "sglang:tp=2"])
def test_data_and_scales_are_cut_and_come_home(stored, layout, tmp_path):
  algo, folder, tensors, _ = stored
  quant = ALGOS[algo]
  text = f"{layout},quant={quant},quant_grid=tensor"
  said = command("plan", "--model", folder, "--from", f"hf:quant={quant}", "--to", text)
  assert "moves data and scales" in said
  assert ("leaves out" in said) == (algo in HAVE_INPUT_SCALES or "megatron" in layout)
  run = ("run", "--model", folder, "--from", f"hf:quant={quant}", "--to", text, "--verify")
  assert "same fingerprint" in command(*run)
  command("convert", folder, tmp_path / "cut", "--to", text)
  home = f"hf:quant={quant},quant_method=modelopt"
  if algo == "FP8":
    no = command("convert", tmp_path / "cut", tmp_path / "no", "--to", home, fails=True)
    assert "an input_scale for every module" in no
    home = f"hf:quant={quant},quant_method=fp8"
  command("convert", tmp_path / "cut", tmp_path / "home", "--to", home)
  left = ("input_scale", "k_scale", "v_scale") if "megatron" in layout else "input_scale"
  same(read(tmp_path / "home"), {k: t for k, t in tensors.items() if not k.endswith(left)})
  config = json.loads((tmp_path / "home" / "config.json").read_text())["quantization_config"]
  if algo == "FP8":
    assert config["activation_scheme"] == "dynamic"
    return
  # Ranks leave scales of inputs out: weights alone are in NVFP4 then.
  written = "W4A16_NVFP4" if algo == "NVFP4" else algo
  assert (config["quant_method"], config["quant_algo"]) == ("modelopt", written)
  assert "lm_head" in config["ignore"]


def is_input_scale(name):
  return name.endswith("input_scale")


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_scales_of_inputs_go_along_where_the_other_method_has_them(stored, method, tmp_path):
  algo, folder, tensors, _ = stored
  if algo != "FP8":
    return
  to = ("--to", f"hf:quant=fp8_tensor,quant_method={method}")
  command("convert", folder, tmp_path / "all", *to)
  same(read(tmp_path / "all"), tensors)
  how = json.loads((tmp_path / "all" / "config.json").read_text())["quantization_config"]
  if method == "fp8":
    assert how["activation_scheme"] == "static"
  else:
    inputs = QuantizationConfig.model_validate(how).config_groups["group_0"].input_activations
    assert (inputs.strategy, inputs.dynamic) == ("tensor", False)
  # Where a module lacks its own, all are scaled when they come.
  lost = next(filter(is_input_scale, tensors))
  config = json.loads((folder / "config.json").read_text())
  write(tmp_path / "some", {k: t for k, t in tensors.items() if k != lost}, config)
  command("convert", tmp_path / "some", tmp_path / "none", *to)
  made = read(tmp_path / "none")
  assert not any(map(is_input_scale, made))
  how = json.loads((tmp_path / "none" / "config.json").read_text())["quantization_config"]
  if method == "fp8":
    assert how["activation_scheme"] == "dynamic"


def test_scales_of_inputs_stay_out_of_other_formats(stored, tmp_path):
  algo, folder, tensors, _ = stored
  if algo not in HAVE_INPUT_SCALES:
    return
  command("convert", folder, tmp_path / "other", "--to", "hf:quant=fp8_channel")
  assert not any(map(is_input_scale, read(tmp_path / "other")))


def test_the_same_form_is_kept_with_all_it_says(stored, tmp_path):
  algo, folder, tensors, _ = stored
  command("convert", folder, tmp_path / "again", "--to", f"hf:quant={ALGOS[algo]},shards=2")
  again = {}
  for file in sorted((tmp_path / "again").glob("*.safetensors")):
    again.update(safetensors.torch.load_file(file))
  same(again, tensors)
  before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
  assert before == after


def test_engines_hold_bytes(stored, tmp_path):
  algo, folder, tensors, _ = stored
  if algo != "NVFP4":
    return
  command("convert", folder, tmp_path / "cut", "--to", "vllm:tp=1,quant=nvfp4,quant_grid=tensor")
  held = ranks(tmp_path / "cut")[0]
  front = "model.layers.1.self_attn."
  q, k, v = (tensors[f"{front}{which}_proj.weight"] for which in "qkv")
  assert torch.equal(held[front + "qkv_proj.weight"], torch.cat((q, k, v)))
  w13 = held["model.layers.1.mlp.experts.routed_experts.w13_weight"]
  assert w13.dtype == torch.uint8 and w13.shape == (4, 384, 160)
  assert held["model.layers.1.mlp.experts.routed_experts.w13_weight_scale_2"].shape == (4, 2)
  assert held[front + "qkv_proj.weight_scale"].dtype == E4M3


def test_the_config_may_lie_beside(stored, tmp_path):
  """hf_quant_config.json, and no quantization_config."""
  algo, folder, tensors, values = stored
  beside = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": algo, "kv_cache_quant_algo": "FP8", "exclude_modules": []},
  }
  write(tmp_path / "hf", tensors, CONFIG)
  (tmp_path / "hf" / "hf_quant_config.json").write_text(json.dumps(beside))
  command("convert", tmp_path / "hf", tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  assert not (tmp_path / "plain" / "hf_quant_config.json").exists()
  nested = {**CONFIG, "quantization_config": {"quant_method": "modelopt", **beside}}
  write(tmp_path / "nested", tensors, nested)
  command("convert", tmp_path / "nested", tmp_path / "plain2", "--to", "hf")
  same(read(tmp_path / "plain2"), values)


def test_plain_weights_are_written_and_read_again(plain, stored, tmp_path):
  algo, _, tensors, _ = stored
  text = f"hf:quant={ALGOS[algo]},quant_method=modelopt"
  if algo == "FP8":
    no = command("convert", plain[0], tmp_path / "packed", "--to", text, fails=True)
    assert "an input_scale for every module" in no
    return
  command("convert", plain[0], tmp_path / "packed", "--to", text)
  made = read(tmp_path / "packed")
  ends = ("input_scale", "k_scale", "v_scale")
  assert made.keys() == {name for name in tensors if not name.endswith(ends)}
  for name, tensor in made.items():
    assert tensor.dtype == tensors[name].dtype, name
    assert [n for n in tensor.shape if n > 1] == [n for n in tensors[name].shape if n > 1], name
  command("convert", tmp_path / "packed", tmp_path / "back", "--to", "hf")
  values = {}
  for name, tensor in plain[1].items():
    parts = {end: made[name + end] for end in ("", "_scale", "_scale_2") if name + end in made}
    if is_linear(name) and algo == "FP8_PB_WO":
      parts["_scale"] = parts["_scale"].reshape(parts["_scale"].shape[0], 1, -1, 1)
    if is_linear(name) and algo == "FP8_PER_CHANNEL_PER_TOKEN":
      parts["_scale"] = parts["_scale"].reshape(-1)
    values[name] = values_of(algo, parts) if is_linear(name) else tensor
  same(read(tmp_path / "back"), values)


def test_what_is_wrong_is_said_in_one_line(stored, tmp_path):
  algo, folder, tensors, _ = stored
  config = json.loads((folder / "config.json").read_text())

  def refused(name, tensors, **how):
    config["quantization_config"].update(how)
    write(tmp_path / name, tensors, config)
    to = ("--to", "vllm:tp=2")
    said = command("convert", tmp_path / name, tmp_path / (name + "-out"), *to, fails=True)
    assert len(said.strip().splitlines()) == 1, said
    return said

  lost = next(key for key in tensors if key.endswith("weight_scale"))
  less = {k: t for k, t in tensors.items() if k != lost}
  message = refused("less", less)
  assert f"without its scales '{lost}'" in message
  wide = {**tensors, lost: torch.ones(7, 9)}
  assert f"'{lost}' is F32 [7, 9]" in refused("wide", wide)
  assert "quant_algo W4A8_AWQ is not supported" in refused("awq", tensors, quant_algo="W4A8_AWQ")
  assert "MIXED_PRECISION without quantized_layers is not supported" in refused(
    "mixed", tensors, quant_algo="MIXED_PRECISION"
  )
  assert "quant_algo must be" in refused("none", tensors, quant_algo=7)
