# SPDX-License-Identifier: Apache-2.0
"""FP8 checkpoints: what torch writes is read, cut and written back bit for bit, also where tensor
parallelism cuts blocks; what is quantised on the way is what torch makes of a rank's own values."""

import json

import pytest
import safetensors.torch
import torch

import program
from folders import command, ranks, read, same, write
from moe_model import CONFIG, E4M3, is_linear

CACHE = ("k_scale", "v_scale")  # a trainer has none
FORMATS = {
  "block": {"weight_block_size": [128, 128]},
  "odd": {"weight_block_size": [48, 80]},
  "tensor": {},
}


def blocks(tensor, block):
  """(slices, row, column) of each block."""
  rows, cols = block or tensor.shape
  for i, r in enumerate(range(0, tensor.shape[0], rows)):
    for j, c in enumerate(range(0, tensor.shape[1], cols)):
      yield (slice(r, r + rows), slice(c, c + cols)), i, j


def quantise(tensor, block):
  """(data, scales) by the definition: amax / 448, divided in float, rounded to nearest even."""
  rows, cols = block or tensor.shape
  shape = (-(-tensor.shape[0] // rows), -(-tensor.shape[1] // cols))
  data, scales = torch.empty(tensor.shape, dtype=E4M3), torch.ones(shape)
  for at, i, j in blocks(tensor, block):
    numbers = tensor[at].float()
    amax = numbers.abs().max()
    if amax > 0:
      scales[i, j] = amax / 448
    data[at] = (numbers / scales[i, j]).clamp(-448, 448).to(E4M3)
  return data, scales


def dequantise(data, scales, block):
  out = torch.empty(data.shape, dtype=torch.bfloat16)
  for at, i, j in blocks(data, block):
    scale = scales.reshape(()) if block is None else scales[i, j]
    out[at] = (data[at].float() * scale).to(torch.bfloat16)
  return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  """A checkpoint of BF16 and its tensors."""
  root = tmp_path_factory.mktemp("plain")
  (root / "config.json").write_text(json.dumps(CONFIG))
  command("synth", root / "config.json", root / "hf")
  tensors = read(root / "hf")
  generator = torch.Generator().manual_seed(7)
  for name, tensor in tensors.items():
    numbers = torch.randn(tensor.shape, generator=generator)
    if tensor.dim() == 2:
      numbers *= torch.exp2(torch.randint(-9, 4, (tensor.shape[0], 1), generator=generator))
    tensors[name] = numbers.to(tensor.dtype)
  tensors["model.layers.0.self_attn.q_proj.weight"][:128, :128] = 0
  return write(root / "bf16", tensors, CONFIG), tensors


@pytest.fixture(scope="module", params=FORMATS)
def stored(request, plain, tmp_path_factory):
  """(name, folder, tensors) of the same in FP8, by torch."""
  block = FORMATS[request.param].get("weight_block_size")
  tensors = {}
  for name, tensor in plain[1].items():
    if not is_linear(name):
      tensors[name] = tensor
      continue
    tensors[name], scales = quantise(tensor, block)
    tensors[name + ("_scale_inv" if block else "_scale")] = scales if block else scales.reshape(())
  for layer in range(2):
    for which, scale in (("k", 0.5), ("v", 0.25)):
      tensors[f"model.layers.{layer}.self_attn.{which}_scale"] = torch.tensor([scale])
  how = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
  config = {**CONFIG, "quantization_config": {**how, **FORMATS[request.param]}}
  return request.param, write(tmp_path_factory.mktemp("fp8") / "hf", tensors, config), tensors


def test_values_of_a_quantised_checkpoint_are_those_of_torch(stored, tmp_path):
  name, folder, tensors = stored
  block = FORMATS[name].get("weight_block_size")
  end = "_scale_inv" if block else "_scale"
  want = {}
  for key, tensor in tensors.items():
    if tensor.dtype == E4M3:
      want[key] = dequantise(tensor, tensors[key + end], block)
    elif not key.endswith("weight" + end):
      want[key] = tensor
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), want)
  assert json.loads((tmp_path / "plain" / "config.json").read_text()) == CONFIG
  assert "F8_E4M3" in command("inspect", folder, "--rank", "0")


# 192 rows over 2 are 96 each and 4 query heads of 64 over 4 are 64 each: both cut blocks of 128.
@pytest.mark.parametrize("layout", [
  "megatron:tp=2,pp=2", "megatron:tp=2,ep=2,etp=2,dp=2", "megatron:tp=2,etp=1,ep=2", "vllm:tp=2",
  "vllm:tp=2,ep=2", "sglang:tp=2", "vllm:tp=1",
])  # fmt: skip
def test_data_and_scales_are_cut_and_come_home(stored, layout, tmp_path):
  name, folder, tensors = stored
  if name == "odd":
    return  # no layout's notation names blocks of 48 x 80
  quant = "fp8_block" if name == "block" else "fp8_tensor"
  text = f"{layout},quant={quant},quant_grid=tensor"
  command("convert", folder, tmp_path / "cut", "--to", text)
  if "megatron" not in layout:
    command("verify", folder, tmp_path / "cut")
  command("convert", tmp_path / "cut", tmp_path / "home", "--to", f"hf:quant={quant}")
  kept = {k: t for k, t in tensors.items() if "megatron" not in layout or not k.endswith(CACHE)}
  same(read(tmp_path / "home"), kept)
  assert "moves data and scales" in command(
    "plan", "--model", folder, "--from", f"hf:quant={quant}", "--to", text
  )


# Rows are cut by column parallelism, columns by row parallelism: there a rank's own grid would be
# another than the checkpoint's.
@pytest.mark.parametrize("layout", [
  "vllm:tp=2", "sglang:tp=2", "vllm:tp=2,ep=2", "megatron:tp=2,pp=2",
])  # fmt: skip
@pytest.mark.parametrize("quant", ["fp8_channel", "fp8_tensor"])
def test_the_same_format_in_and_out_moves_bytes_where_no_grid_is_said(
  plain, layout, quant, tmp_path
):
  folder, tensors = plain
  command("convert", folder, tmp_path / "fp8", "--to", f"hf:quant={quant}")
  text = f"{layout},quant={quant}"
  said = command("convert", tmp_path / "fp8", tmp_path / "cut", "--to", text)
  assert "loses precision" not in said
  assert "the same" in command("verify", tmp_path / "fp8", tmp_path / "cut")
  index = json.loads((tmp_path / "cut" / "reshard.json").read_text())
  assert "quant_grid=tensor" in index["layout"]
  # From ranks on, in any number, with the layout said as it was asked for.
  command("convert", tmp_path / "cut", tmp_path / "on", "--from", text, "--to", f"sglang:quant={quant}")
  command("convert", tmp_path / "on", tmp_path / "home", "--to", f"hf:quant={quant}")
  same(read(tmp_path / "home"), read(tmp_path / "fp8"))
  for model, source in ((tmp_path / "fp8", f"hf:quant={quant}"), (folder, f"hf:quant={quant}")):
    pair = ("--model", model, "--from", source, "--to", text)
    assert "moves data and scales" in command("plan", *pair)
    said = command("run", *pair, "--verify")
    assert "verified" in said and "quantised anew" not in said


def test_what_is_quantised_anew_says_that_it_loses_precision(plain, tmp_path):
  folder, _ = plain
  command("convert", folder, tmp_path / "fp8", "--to", "hf:quant=fp8_channel")
  convert = ("convert", tmp_path / "fp8")
  own = "vllm:tp=2,quant=fp8_channel,quant_grid=local"
  pair = ("--model", folder, "--from", "hf:quant=fp8_channel", "--to")
  assert "quantised anew (loses precision)" in command("plan", *pair, own)
  assert "loses precision" not in command("plan", *pair, "vllm:tp=2,quant=fp8_channel")
  said = command(*convert, tmp_path / "own", "--to", own)
  assert "quantised anew, which loses precision" in said and "quant_grid=tensor" in said
  said = command(*convert, tmp_path / "other", "--to", "vllm:tp=2,quant=mxfp8")
  assert "23 tensors dequantised and quantised anew" in said
  assert "from fp8_channel to mxfp8" in said
  home = ("convert", tmp_path / "own", tmp_path / "home", "--to", "hf:quant=fp8_channel")
  said = command(*home)
  # Each layer's o_proj, and what the dense layer and four experts have of down_proj: what tensor
  # parallelism cuts along rows. The rest is as it was in the ranks, which made it of all of a row.
  assert "7 tensors dequantised and quantised anew" in said
  assert "the source's ranks counted blocks from their own pieces" in said
  cut, back = ranks(tmp_path / "own"), read(tmp_path / "home")
  for name, rows in (("q_proj", slice(0, 128)), ("k_proj", slice(128, 192))):
    front = "model.layers.0.self_attn."
    for end in ("weight", "weight_scale"):
      held = torch.cat([cut[r][f"{front}qkv_proj.{end}"].view(torch.uint8)[rows] for r in range(2)])
      assert torch.equal(back[f"{front}{name}.{end}"].view(torch.uint8), held), (name, end)
  # What engines make of plain weights is theirs: a grid of each rank's own, and nothing to say.
  said = command("convert", folder, tmp_path / "plain", "--to", "vllm:tp=2,quant=fp8_channel")
  assert "quantised anew" not in said
  index = json.loads((tmp_path / "plain" / "reshard.json").read_text())
  assert "quant_grid" not in index["layout"]


def test_verify_sees_shapes_that_contradict_the_config_on_both_sides(plain, tmp_path):
  folder, tensors = plain
  name = "model.layers.0.self_attn.q_proj.weight"
  turned = {**tensors, name: tensors[name].reshape(tensors[name].shape[::-1]).contiguous()}
  for side in "ab":
    write(tmp_path / side, turned, CONFIG)
  done = program.run("verify", tmp_path / "a", tmp_path / "b")
  assert done.returncode == 1 and "but the config says" in done.stdout, done.stdout + done.stderr


def test_blocks_of_a_tensor_are_quantised_where_they_are_whole(plain, tmp_path):
  folder, _ = plain
  cut = "megatron:tp=2,quant=fp8_block,quant_grid=tensor"
  message = command("convert", folder, tmp_path / "no", "--to", cut, fails=True)
  assert "convert to hf:quant=... first and shard that" in message
  command("convert", folder, tmp_path / "fp8", "--to", "hf:quant=fp8_block")
  command("convert", tmp_path / "fp8", tmp_path / "cut", "--to", cut)
  command("verify", tmp_path / "fp8", tmp_path / "cut")
  command("convert", tmp_path / "cut", tmp_path / "values", "--to", "hf")
  command("convert", tmp_path / "fp8", tmp_path / "direct", "--to", "hf")
  same(read(tmp_path / "values"), read(tmp_path / "direct"))


def test_a_run_moves_what_is_stored_or_quantises(stored):
  name, folder, _ = stored
  if name == "odd":
    return  # no layout's notation names blocks of 48 x 80
  quant = "fp8_block" if name == "block" else "fp8_tensor"
  source, target = f"hf:quant={quant}", f"vllm:tp=2,quant={quant},quant_grid=tensor"
  said = command("run", "--model", folder, "--from", source, "--to", target, "--verify")
  assert "same fingerprint" in said
  said = command("run", "--model", folder, "--from", "hf", "--to", target)
  assert "quantised by the sender" in said
  assert f"23 tensors stored as {quant}" in command("inspect", folder)


@pytest.mark.parametrize("quant,block", [("fp8_block", [128, 128]), ("fp8_tensor", None)])
def test_a_checkpoint_is_quantised_as_torch_does(plain, quant, block, tmp_path):
  folder, tensors = plain
  command("convert", folder, tmp_path / "fp8", "--to", f"hf:quant={quant}")
  want = {}
  for name, tensor in tensors.items():
    want[name] = tensor
    if is_linear(name):
      want[name], scales = quantise(tensor, block)
      want[name + ("_scale_inv" if block else "_scale")] = scales
  same(read(tmp_path / "fp8"), want)
  config = json.loads((tmp_path / "fp8" / "config.json").read_text())["quantization_config"]
  assert config["quant_method"] == "fp8" and config.get("weight_block_size") == block
  assert "lm_head" in config["modules_to_not_convert"]
  command("convert", tmp_path / "fp8", tmp_path / "again", "--to", f"hf:quant={quant}")
  same(read(tmp_path / "again"), want)


def test_an_engine_quantises_what_its_ranks_hold(plain, tmp_path):
  folder, _ = plain
  command("convert", folder, tmp_path / "values", "--to", "vllm:tp=2")
  refused = "vllm:tp=2,quant=fp8_block"
  message = command("convert", folder, tmp_path / "no", "--to", refused, fails=True)
  assert "not divisible by the quantisation block of 128" in message
  command("convert", folder, tmp_path / "own", "--to", f"{refused},quant_grid=local")
  values, own = program.RankFolder(tmp_path / "values"), program.RankFolder(tmp_path / "own")
  for rank in range(2):
    a = safetensors.torch.load_file(tmp_path / "values" / values.files[rank])
    b = safetensors.torch.load_file(tmp_path / "own" / own.files[rank])
    for name, tensor in a.items():
      sections = {"qkv_proj": [128, 64, 64], "gate_up_proj": [128, 128], "w13_weight": [96, 96]}
      short = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
      if short not in (*sections, "o_proj", "down_proj", "w2_weight"):
        assert torch.equal(b[name], tensor), name
        continue
      matrices = tensor.reshape(-1, *tensor.shape[-2:])
      data, scales = [], []
      for matrix in matrices:
        split = matrix.split(sections.get(short, matrix.shape[0]))
        parts = [quantise(part, [128, 128]) for part in split]
        data.append(torch.cat([p[0] for p in parts]))
        scales.append(torch.cat([p[1] for p in parts]))
      got = b[name].view(torch.uint8).reshape(matrices.shape)
      assert torch.equal(got, torch.stack(data).view(torch.uint8)), name
      assert torch.equal(b[name + "_scale_inv"].flatten(), torch.stack(scales).flatten()), name


@pytest.mark.parametrize("quant", [
  "mxfp8", "mxfp8_swizzled", "nvfp4", "nvfp4_swizzled", "fp8_channel",
])  # fmt: skip
def test_every_format_can_be_written_for_an_engine(plain, quant, tmp_path):
  folder, _ = plain
  text = f"vllm:tp=2,quant={quant},quant_skip=layers.1+o_proj"
  command("convert", folder, tmp_path / "own", "--to", text)
  file = program.RankFolder(tmp_path / "own").files[0]
  tensors = safetensors.torch.load_file(tmp_path / "own" / file)
  front = "model.layers.0.mlp.gate_up_proj.weight"
  assert tensors["model.layers.0.self_attn.o_proj.weight"].dtype == torch.bfloat16
  assert tensors["model.layers.1.self_attn.qkv_proj.weight"].dtype == torch.bfloat16
  rows = {"fp8_channel": (256, 1), "mxfp8": (256, 10), "nvfp4": (256, 20)}
  swizzled = {"mxfp8_swizzled": (256, 12), "nvfp4_swizzled": (256, 20)}
  assert tensors[front + "_scale"].shape == {**rows, **swizzled}[quant]


def test_what_is_wrong_with_a_quantised_checkpoint_is_said(stored, tmp_path):
  name, folder, tensors = stored
  config = json.loads((folder / "config.json").read_text())
  lost = next(key for key in tensors if "weight_scale" in key)
  less = write(tmp_path / "less", {k: t for k, t in tensors.items() if k != lost}, config)
  refused = ("convert", less, tmp_path / "a", "--to", "hf")
  assert f"without its scales '{lost}'" in command(*refused, fails=True)
  wide = write(tmp_path / "wide", {**tensors, lost: torch.ones(7, 9)}, config)
  refused = ("convert", wide, tmp_path / "a", "--to", "hf")
  assert f"'{lost}' is F32 [7, 9]" in command(*refused, fails=True)
  other = {**config, "quantization_config": {"quant_method": "awq"}}
  awq = write(tmp_path / "awq", tensors, other)
  refused = ("convert", awq, tmp_path / "a", "--to", "vllm:tp=2")
  said = command(*refused, fails=True)
  assert "awq, 4 bits in groups of 128" in said and "no tensor is stored so" in said


@pytest.mark.parametrize("dp, block", [(1, 64), (2, 32)])
def test_blocks_of_experts_that_shards_cut_are_refined_as_vllm_does(dp, block, tmp_path):
  """384 rows over 2 or 4 ranks are no whole blocks of 128: the greatest common divisor with the
  width of 256 is, and each scale is there for every part of its block."""
  sizes = {"num_key_value_heads": 4, "hidden_size": 256, "moe_intermediate_size": 384}
  config = {**CONFIG, **sizes}
  (tmp_path / "config.json").write_text(json.dumps(config))
  command("synth", tmp_path / "config.json", tmp_path / "plain")
  command("convert", tmp_path / "plain", tmp_path / "hf", "--to", "hf:quant=fp8_block")
  text = f"vllm:tp=2,dp={dp},quant=fp8_block"
  command("convert", tmp_path / "hf", tmp_path / "cut", "--to", text)
  command("verify", tmp_path / "hf", tmp_path / "cut")
  tensors, width = read(tmp_path / "hf"), 384 // (2 * dp)

  def refined(expert, which, rank, dim):
    scales = tensors[f"model.layers.1.mlp.experts.{expert}.{which}.weight_scale_inv"]
    for d in range(2):
      size = 384 if d == dim else 256
      scales = scales.repeat_interleave(128 // block, d).narrow(d, 0, size // block)
    return scales.narrow(dim, rank * width // block, width // block)

  for rank, held in ranks(tmp_path / "cut").items():
    front = "model.layers.1.mlp.experts.routed_experts."
    for expert in range(4):
      both = [refined(expert, which, rank, 0) for which in ("gate_proj", "up_proj")]
      assert torch.equal(held[front + "w13_weight_scale_inv"][expert], torch.cat(both))
      down = refined(expert, "down_proj", rank, 1)
      assert torch.equal(held[front + "w2_weight_scale_inv"][expert], down)
      up = tensors[f"model.layers.1.mlp.experts.{expert}.up_proj.weight"][rank * width : (rank + 1) * width]
      data = held[front + "w13_weight"][expert][width:]
      assert torch.equal(data.view(torch.uint8), up.view(torch.uint8))
  command("convert", tmp_path / "cut", tmp_path / "home", "--to", "hf:quant=fp8_block")
  same(read(tmp_path / "home"), tensors)
  command("convert", tmp_path / "cut", tmp_path / "values", "--to", "hf")
  command("convert", tmp_path / "hf", tmp_path / "expected", "--to", "hf")
  same(read(tmp_path / "values"), read(tmp_path / "expected"))
  said = command(
    "run", "--model", tmp_path / "hf", "--from", "hf:quant=fp8_block", "--to", text, "--verify"
  )
  assert "same fingerprint" in said
  # What is quantised on the way has whole blocks only.
  refused = command("convert", tmp_path / "plain", tmp_path / "x", "--to", text, fails=True)
  assert "convert to hf:quant=... first" in refused
