# SPDX-License-Identifier: Apache-2.0
"""Layouts traced from loaders of quantised engines: a trainer with plain values fills them with what
vLLM loads from a checkpoint that was quantised."""

import threading

import pytest

reshard = pytest.importorskip("reshard")

import reshard.hf  # noqa: E402
import torch  # noqa: E402
import world  # noqa: E402
from reshard import tracing  # noqa: E402
from reshard.tracing import vllm as traced_vllm  # noqa: E402
from safetensors import safe_open  # noqa: E402

# model, format, quant_method
_FORMATS = [
  ("llama", "fp8_block", "fp8"),
  ("llama", "fp8_tensor", "fp8"),
  ("llama", "fp8_block", "compressed-tensors"),
  ("llama", "fp8_channel", "compressed-tensors"),
  ("llama", "fp8_channel", "modelopt"),
  ("qwen3-moe", "fp8_block", "fp8"),
  ("qwen3-moe", "fp8_tensor", "fp8"),
  ("qwen3-moe", "fp8_channel", "compressed-tensors"),
  ("qwen3-moe", "mxfp8", "compressed-tensors"),
  ("qwen3-moe", "mxfp4", "compressed-tensors"),
  ("qwen3-moe", "nvfp4_divisor", "compressed-tensors"),
  ("qwen3-moe", "nvfp4", "modelopt"),
  ("deepseek", "fp8_block", "fp8"),
]
_ROWS = [(*row, tp) for row in _FORMATS for tp in (1, 2)]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", "off")


def refit(source, target, folder):
  """{rank: {local name: bytes}} of the target, from a checkpoint in the source's layout. Each rank
  is a thread, and may have a part of both."""
  size = max(*source.ranks, *target.ranks) + 1
  groups = reshard.local(size)
  held = reshard.RankBuffers.allocate(target)
  errors = []

  def run(rank):
    try:
      mine = reshard.hf.load(folder, source, rank) if rank in source.ranks else None
      theirs = held.tensors(rank) if rank in target.ranks else None
      with reshard.Session(
        groups[rank], source=source, source_tensors=mine, target=target, target_tensors=theirs
      ) as session:
        session.refit(version=1)
    except BaseException as error:
      errors.append(error)

  threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  if errors:
    raise errors[0]
  return {
    rank: {name: torch.frombuffer(t.raw(), dtype=torch.uint8) for name, t in held.tensors(rank).items()}
    for rank in target.ranks
  }


@pytest.mark.parametrize("name, quant, method, tp", _ROWS, ids=lambda x: str(x))
def test_plain_values_become_what_vllm_loads(name, quant, method, tp, checkpoint):
  folder = checkpoint(name, f"hf:quant={quant},quant_method={method}")
  traced = traced_vllm.layout(folder, tp=tp)
  assert traced.quant_format == quant
  more = f",quant={quant},quant_method={method},quant_grid=tensor"
  closed = reshard.layout(world.layout_of(dict(tp=tp), more), traced.model)
  assert reshard.diff(traced, closed) == []
  source = reshard.layout("megatron:tp=2", traced.model)
  assert reshard.plan(source, traced).quantises
  held = refit(source, traced, checkpoint(name))
  config = world.engine_config(folder, dict(tp=tp))
  for rank in traced.ranks:
    loaded = world.held_by_vllm(config, folder, rank)
    for local in traced.local(rank):
      theirs = loaded[local.file_name].contiguous().reshape(-1).view(torch.uint8)
      assert torch.equal(held[rank][local.name], theirs), (rank, local.name)


@pytest.mark.parametrize("quant, method", [("fp8_block", "fp8"), ("fp8_channel", "modelopt")])
def test_the_checkpoint_is_what_quantise_makes(quant, method, checkpoint):
  name = "model.layers.1.mlp.down_proj.weight"

  def tensor(folder, of):
    for path in folder.glob("*.safetensors"):
      with safe_open(path, "pt") as file:
        if of in file.keys():
          return file.get_tensor(of)
    raise AssertionError(of)

  stored = tensor(checkpoint("llama", f"hf:quant={quant},quant_method={method}"), name)
  made = reshard.quantise(tensor(checkpoint("llama"), name), quant)
  assert bytes(stored.view(torch.uint8).numpy()) == bytes(made.data.raw())


def test_quantised_weights_move_as_they_are(checkpoint):
  folder = checkpoint("llama", "hf:quant=fp8_block,quant_method=fp8")
  traced = traced_vllm.layout(folder, tp=2)
  plan = reshard.plan(reshard.Layout.of_checkpoint(traced.model), traced)
  assert not plan.quantises


def test_data_and_scales_can_be_tensors_of_their_own(checkpoint):
  folder = checkpoint("llama", "hf:quant=fp8_block,quant_method=fp8")
  found = traced_vllm.trace_vllm(folder, weights=tracing.stored_tensors(folder), tp=2)
  assert not found.layout.quantised
  assert "model.layers.0.mlp.down_proj.weight_scale_inv" in found.layout.tensors


def test_a_config_and_a_layout_are_enough(checkpoint, tmp_path):
  """Before there is a quantised checkpoint."""
  folder = checkpoint("qwen3-moe", "hf:quant=fp8_block,quant_method=fp8")
  (tmp_path / "config.json").write_text((folder / "config.json").read_text())
  weights = reshard.layout("hf:quant=fp8_block", reshard.open_model(checkpoint("qwen3-moe")))
  traced = traced_vllm.layout(tmp_path, weights=weights, tp=2)
  assert reshard.diff(traced, traced_vllm.layout(folder, tp=2)) == []


def test_scales_that_engines_repeat_are_named(checkpoint):
  folder = checkpoint("qwen3-moe-384", "hf:quant=fp8_block,quant_method=fp8")
  with pytest.raises(tracing.TracingError, match="weight_scale_inv.*stored_tensors"):
    traced_vllm.layout(folder, tp=2)
