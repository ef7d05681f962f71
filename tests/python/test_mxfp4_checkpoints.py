# SPDX-License-Identifier: Apache-2.0
"""gpt-oss as it is published, experts in MXFP4: values are those of transformers' own decoder in any
layout, bytes are moved as they are to ranks that hold the same, and come home."""

import json

import pytest
import safetensors.torch
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import program
from folders import bytes_of, command, ranks, read, same, write

E, H, I, LAYERS = 4, 64, 96, 2
CONFIG = {
  "architectures": ["GptOssForCausalLM"],
  "model_type": "gpt_oss",
  "torch_dtype": "bfloat16",
  "hidden_size": H,
  "intermediate_size": I,
  "num_hidden_layers": LAYERS,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 16,
  "vocab_size": 120,
  "num_local_experts": E,
  "num_experts_per_tok": 2,
  "attention_bias": True,
  "tie_word_embeddings": False,
  "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
QUANT = {
  "quant_method": "mxfp4",
  "modules_to_not_convert": [
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
  ],
}  # fmt: skip
STORED = {**CONFIG, "quantization_config": QUANT}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
  """(folder, tensors) of a checkpoint with random blocks and scales."""
  root = tmp_path_factory.mktemp("mxfp4")
  (root / "config.json").write_text(json.dumps(CONFIG))
  command("synth", root / "config.json", root / "plain")
  tensors = read(root / "plain")
  generator = torch.Generator().manual_seed(3)

  def draw(low, high, *shape):
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

  for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
    inputs, outputs = tensors.pop(name).shape[1:]
    tensors[name + "_blocks"] = draw(0, 256, E, outputs, inputs // 32, 16)
    tensors[name + "_scales"] = draw(100, 140, E, outputs, inputs // 32)
  return write(root / "hf", tensors, STORED), tensors


@pytest.fixture(scope="module")
def values(stored):
  """The tensors as transformers makes them plain."""
  out = {}
  for name, tensor in stored[1].items():
    if name.endswith("_blocks"):
      plain = name.removesuffix("_blocks")
      out[plain] = convert_moe_packed_tensors(tensor, stored[1][plain + "_scales"])
    elif not name.endswith("_scales"):
      out[name] = tensor
  return out


def test_values_are_those_of_transformers(stored, values, tmp_path):
  command("convert", stored[0], tmp_path / "plain", "--to", "hf")
  same(read(tmp_path / "plain"), values)
  assert json.loads((tmp_path / "plain" / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize("layout", [
  "vllm:tp=2", "vllm:tp=4,ep=4", "sglang:tp=2", "megatron:tp=2,pp=2", "megatron:tp=2,ep=2,etp=1",
])  # fmt: skip
def test_values_reach_every_layout(stored, values, layout, tmp_path):
  plain = write(tmp_path / "plain", values, CONFIG)
  command("convert", stored[0], tmp_path / "a", "--to", layout)
  command("convert", plain, tmp_path / "b", "--to", layout)
  a, b = ranks(tmp_path / "a"), ranks(tmp_path / "b")
  assert a.keys() == b.keys()
  for rank, tensors in a.items():
    same(tensors, b[rank])


# 96 rows are 3 blocks: two ranks have 2 and 1, four have 1, 1, 1 and none.
@pytest.mark.parametrize("layout", [
  "vllm:tp=2", "vllm:tp=4", "vllm:tp=4,ep=4", "vllm:tp=1", "sglang:tp=2", "sglang:tp=4,ep=4",
  "sglang:tp=2,transposed=1",
])  # fmt: skip
def test_bytes_move_as_they_are_and_come_home(stored, layout, tmp_path):
  folder, tensors = stored
  text = f"{layout},quant=mxfp4"
  assert "moves data and scales" in command(
    "plan", "--model", folder, "--from", "hf:quant=mxfp4", "--to", text
  )
  command("convert", folder, tmp_path / "cut", "--to", text)
  command("verify", folder, tmp_path / "cut")
  command("convert", tmp_path / "cut", tmp_path / "home", "--to", "hf:quant=mxfp4")
  same(read(tmp_path / "home"), tensors)
  got = json.loads((tmp_path / "home" / "config.json").read_text())
  assert got["quantization_config"]["quant_method"] == "mxfp4"
  said = command("run", "--model", folder, "--from", "hf:quant=mxfp4", "--to", text, "--verify")
  assert "same fingerprint" in said


def test_ranks_hold_what_the_engine_loads(stored, tmp_path):
  """Slices of gpt_oss.py's loaders: ceil(blocks / tp) blocks of the inner width to each rank.

  Parameters are created as large on every rank; where blocks run out, the last has zeros.
  """
  folder, tensors = stored
  command("convert", folder, tmp_path / "cut", "--to", "vllm:tp=2,quant=mxfp4")
  per_rank = -(-(I // 32) // 2) * 32
  for rank, held in ranks(tmp_path / "cut").items():
    begin, end = rank * per_rank, min(I, (rank + 1) * per_rank)
    for layer in range(LAYERS):
      front = f"model.layers.{layer}.mlp.experts."
      blocks = tensors[front + "gate_up_proj_blocks"].reshape(E, 2 * I, H // 2)
      down = tensors[front + "down_proj_blocks"].reshape(E, H, I // 2)
      scales = tensors[front + "down_proj_scales"]
      want = {
        "w13_weight": blocks[:, 2 * begin : 2 * end],
        "w13_weight_scale": tensors[front + "gate_up_proj_scales"][:, 2 * begin : 2 * end],
        "w2_weight": down[..., begin // 2 : end // 2],
        "w2_weight_scale": scales[..., begin // 32 : end // 32],
      }
      for name, tensor in want.items():
        got = held[f"{front}routed_experts.{name}"]
        unit = {"w13_weight": 2, "w13_weight_scale": 2, "w2_weight": 1 / 2, "w2_weight_scale": 1 / 32}
        dim = 1 if name.startswith("w13") else 2
        assert got.dtype == torch.uint8 and got.shape[dim] == per_rank * unit[name], name
        real, padding = got.split([tensor.shape[dim], got.shape[dim] - tensor.shape[dim]], dim)
        assert torch.equal(real, tensor) and not padding.any(), name


# Every rank has a bias for each of its experts: vLLM's tensor and data parallelism share all of
# them, SGLang's four ranks share each half of them between two.
@pytest.mark.parametrize("layout,experts,sharers", [
  ("vllm:tp=2", E, 2), ("vllm:tp=2,dp=2", E, 4), ("vllm:tp=2,ep=2", E // 2, 1),
  ("sglang:tp=2", E, 2), ("sglang:tp=4,ep=2", E // 2, 2),
])  # fmt: skip
@pytest.mark.parametrize("quant", ["", ",quant=mxfp4"])
def test_ranks_that_share_experts_have_their_biases_or_as_many_zeros(
  stored, layout, experts, sharers, quant, tmp_path
):
  folder, tensors = stored
  command("convert", folder, tmp_path / "cut", "--to", layout + quant)
  end = "routed_experts.w2_bias" if layout.startswith("vllm") else "w2_weight_bias"
  for rank, held in ranks(tmp_path / "cut").items():
    begin = rank // sharers * experts
    for layer in range(LAYERS):
      front = f"model.layers.{layer}.mlp.experts."
      want = tensors[front + "down_proj_bias"][begin : begin + experts].float()
      got = held[front + end]
      assert got.shape == (experts, H), (rank, got.shape)
      assert torch.equal(got.float(), want if rank % sharers == 0 else torch.zeros_like(want))


def test_verify_sees_a_local_tensor_of_another_shape_than_the_layouts(stored, tmp_path):
  folder, _ = stored
  command("convert", folder, tmp_path / "cut", "--to", "vllm:tp=2,quant=mxfp4")
  name = "model.layers.0.mlp.experts.routed_experts.w2_bias"
  path = tmp_path / "cut" / "rank-00000.safetensors"
  tensors = safetensors.torch.load_file(path)
  bias = tensors[name]
  for shape, words in (
    ((2 * E, H), f"'{name}' is BF16 [{2 * E}, {H}]; by layout"),  # as it once was written
    ((E, H, 1), f"rank 0: tensor '{name}' is [{E}, {H}, 1]; by layout"),
  ):
    other = torch.zeros(shape, dtype=bias.dtype)
    other.reshape(-1)[: bias.numel()] = bias.reshape(-1)
    safetensors.torch.save_file({**tensors, name: other}, path)
    done = program.run("verify", folder, tmp_path / "cut")
    assert done.returncode == 1 and words in done.stdout + done.stderr, done.stdout + done.stderr
    assert "the same:" not in done.stdout.replace("not the same:", "")
  said = json.loads(program.run("verify", folder, tmp_path / "cut", "--json").stdout)
  assert said["equal"] is False and len(said["other_shapes"]) == 1 and not said["differing"]


def test_reports_say_what_files_and_engines_hold(stored):
  folder, _ = stored
  said = json.loads(command("inspect", folder, "--rank", "0", "--json"))
  assert said["stored_as"] == "mxfp4"
  held = {tensor["name"]: tensor for tensor in said["local"]}
  blocks = held["model.layers.0.mlp.experts.down_proj_blocks"]
  assert (blocks["dtype"], blocks["shape"]) == ("U8", [E, H, I // 32, 16])
  assert blocks["elements"] == "F4"
  layout = ("--layout", "vllm:tp=2,quant=mxfp4")
  said = json.loads(command("inspect", folder, *layout, "--rank", "1", "--json"))
  held = {tensor["name"]: tensor for tensor in said["local"]}
  w13 = held["model.layers.0.mlp.experts.routed_experts.w13_weight"]
  assert (w13["dtype"], w13["shape"]) == ("U8", [E, 128, H // 2])
  said = json.loads(command("inspect", folder, *layout, "--json"))
  shapes = {kind["local"]: kind["shape"] for kind in said["layouts"][0]["kinds"]}
  assert shapes["model.layers.N.mlp.experts.routed_experts.w2_weight"] == [E, H, 32]
  assert "qkv_proj" in command("inspect", folder, *layout)


def test_plain_experts_are_quantised_and_nothing_else(values, tmp_path):
  plain = write(tmp_path / "plain", values, CONFIG)
  command("convert", plain, tmp_path / "packed", "--to", "hf:quant=mxfp4")
  packed = read(tmp_path / "packed")
  assert {name for name, t in packed.items() if t.dtype == torch.uint8} == {
    f"model.layers.{layer}.mlp.experts.{which}_{part}"
    for layer in range(LAYERS)
    for which in ("gate_up_proj", "down_proj")
    for part in ("blocks", "scales")
  }
  # Values that MXFP4 can say come back as they were.
  command("convert", tmp_path / "packed", tmp_path / "back", "--to", "hf")
  back = read(tmp_path / "back")
  for name, tensor in values.items():
    assert torch.equal(back[name].float(), tensor.float()), name
  for name, tensor in packed.items():
    if name.endswith("_blocks"):
      front = name.removesuffix("_blocks")
      again = convert_moe_packed_tensors(tensor, packed[front + "_scales"])
      assert torch.equal(bytes_of(again), bytes_of(back[front])), name
  # An engine's ranks make the same of the same values.
  command("convert", plain, tmp_path / "own", "--to", "vllm:tp=2,quant=mxfp4")
  command("verify", tmp_path / "packed", tmp_path / "own")


def test_from_a_trainer_to_the_published_form(values, tmp_path):
  plain = write(tmp_path / "plain", values, CONFIG)
  command("convert", plain, tmp_path / "trainer", "--to", "megatron:tp=2,ep=2,etp=1")
  command("convert", tmp_path / "trainer", tmp_path / "a", "--to", "hf:quant=mxfp4")
  command("convert", plain, tmp_path / "b", "--to", "hf:quant=mxfp4")
  same(read(tmp_path / "a"), read(tmp_path / "b"))


def changed(tensors, **shapes):
  front = "model.layers.0.mlp.experts."
  return {**tensors, **{front + name: tensor for name, tensor in shapes.items()}}


def test_what_is_wrong_is_said_in_one_line(stored, values, tmp_path):
  folder, tensors = stored
  front = "model.layers.0.mlp.experts."

  def refused(name, tensors, config=STORED, to="hf"):
    write(tmp_path / name, tensors, config)
    said = command("convert", tmp_path / name, tmp_path / (name + "-out"), "--to", to, fails=True)
    assert len(said.strip().splitlines()) == 1, said
    return said

  less = {k: t for k, t in tensors.items() if k != front + "down_proj_scales"}
  assert "without its scales" in refused("less", less)
  wide = changed(tensors, down_proj_scales=torch.zeros(E, H, I // 16, dtype=torch.uint8))
  assert f"down_proj_scales' is U8 [{E}, {H}, 6]" in refused("wide", wide)
  bf16 = changed(tensors, down_proj_scales=torch.zeros(E, H, I // 32, dtype=torch.bfloat16))
  assert "must be U8" in refused("bf16", bf16)
  half = changed(tensors, down_proj_blocks=torch.zeros(E, H, I // 32, 8, dtype=torch.uint8))
  assert "down_proj" in refused("half", half)
  other = changed(
    tensors,
    down_proj_blocks=torch.zeros(E, H, 4, 16, dtype=torch.uint8),
    down_proj_scales=torch.zeros(E, H, 4, dtype=torch.uint8),
  )
  assert "but the config says" in refused("other", other)
  # Without any codes the section is left over: the weights are plain.
  write(tmp_path / "none", values, STORED)
  said = command("convert", tmp_path / "none", tmp_path / "none-out", "--to", "vllm:tp=2")
  assert "left out its quantization_config" in said
  message = command("convert", folder, tmp_path / "m", "--to", "megatron:quant=mxfp4", fails=True)
  assert "merges with others" in message
  message = command(
    "convert", folder, tmp_path / "b", "--to", "hf:quant=mxfp4,quant_method=fp8", fails=True
  )
  assert "quant_method=fp8 does not support mxfp4" in message
  assert not (tmp_path / "b").exists()

