# SPDX-License-Identifier: Apache-2.0
"""Layouts that store other values than the checkpoint's: dtypes, norms' centres, Mamba's A. Every
rank holds the rounded value to the bit, the way home loses no more than the rounding allows, and
the plan says so beforehand."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import checkpoints
import program
from oracle import expected_ranks, parse
from oracle_model import read_checkpoint, read_model
from oracle_tensor import difference
from oracle_values import DTYPES, PRECISION_BITS, is_float, settle, to_float

LOSSY = [
  ("llama", "megatron:tp=2,dtype=float16"),
  ("llama", "vllm:tp=3,dtype=float16"),
  ("llama-gqa-tied", "megatron:tp=2,pp=2,dtype=bfloat16"),
  ("llama-gqa-tied", "vllm:tp=4,dtype=bfloat16"),
  ("llama-bias", "megatron:tp=2,dtype=bfloat16"),
  ("llama-bias", "vllm:tp=2,dtype=bfloat16"),
  ("deepseek", "megatron:tp=2,ep=2,dtype=float16"),
  ("deepseek", "vllm:tp=2,dtype=float16"),
  ("deepseek-noq", "megatron:tp=2,dtype=bfloat16"),
  ("glm", "vllm:tp=2,ep=2,dtype=float16"),
  ("gpt-oss", "vllm:tp=2,dtype=float16"),
  ("qwen3-next", "vllm:tp=2,dtype=float16"),
  ("nemotron", "megatron:tp=2,dtype=float16"),
  ("nemotron", "vllm:tp=2,dtype=float16"),
  ("llama", "megatron:tp=2,gamma=zero_centered"),
  ("qwen3", "megatron:tp=2,pp=2,gamma=zero_centered"),
  ("deepseek", "megatron:tp=2,gamma=zero_centered"),
  ("nemotron", "megatron:tp=2,gamma=zero_centered"),
  ("gemma3", "megatron:tp=2,gamma=plain"),
  ("qwen3-next", "megatron:tp=2,gamma=plain"),
]
EXACT = [
  ("gemma3", "megatron:tp=2"),
  ("qwen3-next", "megatron:tp=2,gamma=stored"),
  ("llama", "megatron:tp=2,dtype=float32"),
  ("llama", "vllm:tp=2,dtype=float32"),
  ("llama-bias", "megatron:tp=2,dtype=float32"),
  ("llama-bias", "vllm:tp=3,dtype=float32"),
  ("gpt-oss", "megatron:tp=2,dtype=float32"),
  ("glm", "vllm:tp=2,dtype=float32"),
  ("gemma3", "megatron:tp=2,gamma=zero_centered"),
  ("llama", "megatron:tp=2,gamma=plain"),
]


def planned_losses(folder, layout):
  """The plan's conversions to `layout` that lose precision."""
  done = program.run("plan", "--model", folder, "--from", "hf", "--to", layout, "--json")
  assert done.returncode == 0, done.stderr
  conversions = json.loads(done.stdout)["conversions"]
  return [conversion for conversion in conversions if conversion["loses_precision"]]


def stored_and_back(folder, model, layout, tmp_path):
  """Checks every rank and returns the tensors that come home."""
  out = program.convert(folder, tmp_path / "ranks", "hf", layout)
  written = program.RankFolder(out)
  for rank, expected in enumerate(expected_ranks(model, layout)):
    held = written.rank(rank)
    wrong = difference(settle(expected, held), held)
    assert not wrong, f"{layout}, rank {rank}:\n" + "\n".join(wrong)
  done = program.run("verify", folder, out)
  assert done.returncode == 0, done.stdout + done.stderr
  return read_checkpoint(program.convert(out, tmp_path / "back", layout, "hf"))


def allowed(original, layout):
  """How far each value may be off: a rounding to the stored dtype, of a value near one too where a
  norm's centre moves, and one back."""
  _, sizes = parse(layout)
  stored = DTYPES[sizes.dtype] if sizes.dtype else original.dtype
  values = np.abs(to_float(original))
  if getattr(sizes, "gamma", "stored") not in ("", "stored"):
    values = values + 1
  steps = [2.0 ** -PRECISION_BITS[dtype] for dtype in (stored, original.dtype)]
  # Below the smallest normal number of F16 the steps stop shrinking.
  least = 2.0**-25 if "F16" in (stored, original.dtype) else 0
  return values * sum(steps) * 1.01 + least


@pytest.mark.parametrize("name, layout", LOSSY, ids=[f"{name}-{layout}" for name, layout in LOSSY])
def test_rounded_values(name, layout, checkpoint, tmp_path):
  folder, model = checkpoint(name)
  assert planned_losses(folder, layout)
  back = stored_and_back(folder, model, layout, tmp_path)
  assert back.keys() == model.tensors.keys()
  changed = 0
  for tensor_name, original in model.tensors.items():
    assert back[tensor_name].dtype == original.dtype
    if is_float(original):
      off = np.abs(to_float(back[tensor_name]) - to_float(original))
      assert (off <= allowed(original, layout)).all(), tensor_name
      changed += int((off > 0).sum())
  assert changed > 0, "nothing was rounded: the test shows nothing"


@pytest.mark.parametrize("name, layout", EXACT, ids=[f"{name}-{layout}" for name, layout in EXACT])
def test_wider_values(name, layout, checkpoint, tmp_path):
  folder, model = checkpoint(name)
  assert planned_losses(folder, layout) == []
  back = stored_and_back(folder, model, layout, tmp_path)
  assert difference(model.tensors, back) == []


def restored(folder, ends, dtype):
  """The checkpoint with the tensors whose names end so in another dtype, as published ones are."""
  path = folder / "model.safetensors"
  tensors = safetensors.torch.load_file(path)
  changed = [name for name in tensors if name.endswith(ends)]
  assert changed
  tensors |= {name: tensors[name].to(dtype) for name in changed}
  safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
  return folder


def check_ranks(folder, layout, tmp_path):
  """Checks what every rank holds, dtypes too."""
  model = read_model(folder)
  out = program.convert(folder, tmp_path / "ranks", "hf", layout)
  for rank, expected in enumerate(expected_ranks(model, layout)):
    held = program.RankFolder(out).rank(rank)
    wrong = difference(settle(expected, held), held)
    assert not wrong, f"{layout}, rank {rank}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("layout", ["megatron:tp=2,ep=2", "megatron:dtype=bfloat16", "vllm:tp=2"])
@pytest.mark.parametrize("name", ["deepseek", "glm", "nemotron"])
def test_the_correction_bias_is_float32_whatever_the_checkpoint_has(name, layout, tmp_path):
  folder = checkpoints.write_checkpoint(tmp_path / "checkpoint", name)
  check_ranks(restored(folder, "e_score_correction_bias", torch.bfloat16), layout, tmp_path)


@pytest.mark.parametrize("name", ["deepseek", "glm"])
def test_fsdp_has_the_correction_bias_as_transformers_loads_it(name, tmp_path):
  folder = checkpoints.write_checkpoint(tmp_path / "checkpoint", name)
  restored(folder, "e_score_correction_bias", torch.bfloat16)
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
  loaded = {n: t for n, t in model.named_buffers() if n.endswith("e_score_correction_bias")}
  ranks = program.RankFolder(program.convert(folder, tmp_path / "ranks", "hf", "fsdp:shard=2"))
  assert loaded
  for tensor, want in loaded.items():
    held = ranks.rank(1)[tensor]
    assert (held.dtype, want.dtype) == ("F32", torch.float32)
    assert np.array_equal(to_float(held), want.numpy())


@pytest.mark.parametrize("layout", ["vllm:tp=2", "vllm:tp=2,dtype=float32"])
def test_engines_keep_parameters_in_the_models_dtype(layout, tmp_path):
  folder = checkpoints.write_checkpoint(tmp_path / "checkpoint", "nemotron")
  ends = (".D", "dt_bias", "A_log", "mixer.norm.weight", "gate.weight", "layers.0.norm.weight")
  check_ranks(restored(folder, ends, torch.float32), layout, tmp_path)


@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss", "deepseek"])
def test_blocks_of_gates_and_ups_alternate(name, checkpoint, tmp_path):
  """Undone as megatron-core's GroupedMLP undoes it, they are all gates, then all ups."""
  folder, model = checkpoint(name)
  keys = "glu_interleave=8" + (",shared_glu_interleave=16" if name == "deepseek" else "")
  plain = program.convert(folder, tmp_path / "plain", "hf", "megatron:tp=2,ep=2")
  layout = f"megatron:tp=2,ep=2,{keys}"
  turns = program.convert(folder, tmp_path / "turns", "hf", layout)
  compared = 0
  for rank in range(4):
    want, have = (program.RankFolder(ranks).rank(rank) for ranks in (plain, turns))
    assert want.keys() == have.keys()
    for tensor, expected in want.items():
      data = have[tensor].data
      if "experts.linear_fc1" in tensor:
        rows = 16 if "shared" in tensor else 8
        blocks = data.reshape(-1, 2, rows, *data.shape[1:])
        data = blocks.swapaxes(0, 1).reshape(data.shape)
        compared += 1
      assert np.array_equal(data, expected.data), f"rank {rank}: {tensor}"
  assert compared > 0
  back = read_checkpoint(program.convert(turns, tmp_path / "back", layout, "hf"))
  assert difference(model.tensors, back) == []


def test_norms_of_qwen3_next_come_from_megatron_as_vllm_wants_them(checkpoint, tmp_path):
  """A trainer holds all norms centred on zero; vLLM the delta nets' as the checkpoint has them."""
  folder, model = checkpoint("qwen3-next")
  trainer = program.convert(folder, tmp_path / "trainer", "hf", "megatron:tp=2")
  held = program.RankFolder(trainer).rank(0)
  engine = program.RankFolder(program.convert(trainer, tmp_path / "engine", "megatron:tp=2", "vllm:tp=2"))
  for layer in range(3):
    norm = to_float(model.tensors[f"model.layers.{layer}.linear_attn.norm.weight"])
    trained = to_float(held[f"decoder.layers.{layer}.self_attention.out_norm.weight"])
    assert (np.abs(trained + 1 - norm) <= 2.0**-9).all()
    vllm = to_float(engine.rank(1)[f"model.layers.{layer}.linear_attn.norm.weight"])
    assert (np.abs(vllm - norm) <= 2.0**-8).all()


def test_a_folder_of_ranks_says_what_the_norms_of_qwen3_next_hold(checkpoint, tmp_path):
  folder, _ = checkpoint("qwen3-next")
  trainer = program.convert(folder, tmp_path / "trainer", "hf", "megatron:tp=2")
  index = trainer / "reshard.json"
  said = json.loads(index.read_text())
  assert said["layout"] == "megatron:gamma=zero_centered,tp=2"
  index.write_text(json.dumps(said | {"layout": "megatron:tp=2"}))
  done = program.run("verify", folder, trainer)
  assert done.returncode == 1
  assert "does not say what the norms of Qwen3NextForCausalLM hold" in done.stderr


@pytest.mark.parametrize("layout", ["vllm:tp=4", "vllm:tp=2,dp=2,ep=4"])
def test_a_of_mamba(layout, checkpoint, tmp_path):
  folder, model = checkpoint("nemotron", dtype=torch.float32)
  assert [loss["example"] for loss in planned_losses(folder, layout) if "A_log" in loss["example"]]
  back = stored_and_back(folder, model, layout, tmp_path)
  for name, original in model.tensors.items():
    if name.endswith("A_log"):
      off = np.abs(to_float(back[name]) - to_float(original))
      assert (off <= 2.0**-22 * (1 + np.abs(to_float(original)))).all(), name
    else:
      assert np.array_equal(back[name].data, original.data), name
