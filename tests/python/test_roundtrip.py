# SPDX-License-Identifier: Apache-2.0
"""Through three layouts and home: the same tensors bit for bit, and the same logits."""

import pytest
import torch
import transformers

import checkpoints
import program
from layout_table import TABLE
from oracle_model import read_checkpoint
from oracle_tensor import difference

# What each model passes through between two Hugging Face checkpoints.
CHAINS = {
  "llama": ("megatron:tp=2,pp=3", "vllm:tp=3", "megatron:tp=6,pp=2,first=2,norms=separate"),
  "llama-bias": ("megatron:tp=6", "vllm:tp=3", "megatron:tp=2,pp=3,first=1,last=2"),
  "qwen2": ("megatron:tp=8", "vllm:tp=8", "megatron:tp=2,cp=2,pp=2"),
  "qwen3": ("megatron:tp=4,pp=2", "vllm:tp=4,dp=2", "megatron:tp=2,pp=4,vocab_multiple=3"),
  "qwen3-moe": ("megatron:tp=2,pp=2,ep=4", "vllm:tp=2,dp=2,ep=4", "megatron:tp=4,ep=2,etp=2"),
  "mixtral": ("megatron:tp=2,pp=3,ep=2", "vllm:tp=4", "megatron:tp=8,ep=4,etp=2"),
}
# The same for architectures that are one dtype, tied or not, and one file.
OTHERS = {
  "deepseek": ("megatron:tp=2,pp=2,ep=2", "vllm:tp=2,dp=2,ep=4", "megatron:tp=4,norms=separate"),
  "deepseek-noq": ("megatron:tp=2,ep=4,etp=1", "vllm:tp=4", "megatron:pp=2,norms=separate"),
  "kimi": ("megatron:tp=2,pp=2,ep=6,etp=1", "vllm:dp=5,ep=5", "megatron:tp=4,ep=3,etp=1,dp=3"),
  "glm": ("megatron:tp=4,pp=2,ep=2", "vllm:tp=8", "megatron:tp=8,norms=separate"),
  "gpt-oss": ("megatron:tp=2,pp=2,ep=2", "vllm:tp=4", "megatron:ep=8,norms=separate"),
  "qwen3-next": ("megatron:tp=2,pp=2,ep=2", "vllm:tp=4,ep=4", "megatron:tp=4,norms=separate"),
  "gemma3": ("megatron:tp=8", "vllm:tp=4,dp=2", "megatron:tp=2,pp=4"),
  "nemotron": ("megatron:tp=2,pp=3,ep=4,etp=1", "vllm:tp=4,ep=4", "megatron:tp=4,norms=separate"),
  "nemotron-latent": ("megatron:tp=4,ep=2,etp=2", "vllm:tp=2,dp=2", "megatron:tp=2,pp=2,ep=2"),
}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def logits(folder, dtype):
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
  tokens = torch.arange(24).reshape(2, 12) * 3
  with torch.no_grad():
    return model(tokens).logits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", CHAINS)
def test_there_and_home_again(name, tied, dtype, checkpoint, tmp_path):
  folder, model = checkpoint(name, tied=tied, dtype=DTYPES[dtype])
  assert model.is_tied() == tied
  here, layout = folder, "hf"
  for step, target in enumerate((*CHAINS[name], "hf")):
    here = program.convert(here, tmp_path / f"step{step}", layout, target)
    layout = target
  wrong = difference(model.tensors, read_checkpoint(here))
  assert not wrong, "\n".join(wrong)
  assert checkpoints.config_of(here) == checkpoints.config_of(folder)
  before, after = logits(folder, DTYPES[dtype]), logits(here, DTYPES[dtype])
  assert torch.isfinite(before).all() and before.std() > 0
  assert torch.equal(before, after)


@pytest.mark.parametrize("name", OTHERS)
def test_every_architecture_comes_home(name, checkpoint, home_bytes, tmp_path):
  folder, _ = checkpoint(name)
  here, layout = folder, "hf"
  for step, target in enumerate((*OTHERS[name], "hf")):
    here = program.convert(here, tmp_path / f"step{step}", layout, target)
    layout = target
    done = program.run("verify", folder, here)
    assert done.returncode == 0, f"{target}:\n{done.stdout}{done.stderr}"
  assert (here / "model.safetensors").read_bytes() == home_bytes(name)
  assert checkpoints.config_of(here) == checkpoints.config_of(folder)
  dtype = checkpoints.SPECS[name][2]
  before, after = logits(folder, dtype), logits(here, dtype)
  assert torch.isfinite(before).all() and before.std() > 0
  assert torch.equal(before, after)


@pytest.mark.parametrize("name", checkpoints.SPECS)
def test_every_architecture_is_in_the_table_often_enough(name):
  for family in ("vllm",) if name == "deepseek-bias" else ("megatron", "vllm"):
    rows = [layout for other, layout in TABLE if other == name and layout.startswith(family)]
    assert len(set(rows)) >= 3, rows


def test_a_checkpoint_in_several_files(checkpoint, tmp_path):
  folder, model = checkpoint("qwen3-moe", shard_bytes="100KB")
  assert len(list(folder.glob("*.safetensors"))) > 3
  ranks = program.convert(folder, tmp_path / "ranks", "hf", "megatron:tp=2,ep=2,pp=2")
  home = program.convert(ranks, tmp_path / "home", "megatron:tp=2,ep=2,pp=2", "hf")
  wrong = difference(model.tensors, read_checkpoint(home))
  assert not wrong, "\n".join(wrong)
  assert torch.equal(logits(folder, torch.bfloat16), logits(home, torch.bfloat16))
