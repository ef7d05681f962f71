# SPDX-License-Identifier: Apache-2.0
"""Protects: what Megatron-Core's dist_checkpointing writes, reshard reads to the byte: the same tensors
as a refit from the live modules delivers."""

import pytest
import torch
from serving import run, serving

import reshard

pytest.importorskip("psutil", reason="Megatron-Core's dist_checkpointing writes with psutil only")

import checkpoint_rank

SIZE = 2
CASES = [
  ("llama", "tp=2", None),
  ("llama", "pp=2", {"non_homogeneous_layers": True}),
  ("qwen2", "tp=2", None),
  ("qwen3-moe", "ep=2", None),
  ("qwen3-moe", "tp=2", None),
]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(checkpoint_rank.serve, SIZE, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


@pytest.mark.parametrize(("name", "text", "metadata"), CASES, ids=lambda value: str(value))
def test_a_checkpoint_of_megatron_is_its_modules_model(processes, tmp_path, name, text, metadata):
  run(processes, "write", name, text, str(tmp_path), metadata)
  whole = torch.load(tmp_path / "whole.pt")
  model = reshard.open_model(str(tmp_path / "dist"))
  assert {t.name for t in model.tensors} == set(whole)
  assert model.weights.kind == "dcp"
  layout = reshard.layout("hf", model)
  tensors = {t.name: torch.zeros(t.shape, dtype=whole[t.name].dtype) for t in layout.local(0)}
  buffers = reshard.RankBuffers(layout, {0: tensors})
  reshard.load_weights(model, buffers, rank=0, progress=False)
  for tensor, value in whole.items():
    assert value.abs().sum() > 0, tensor
    assert torch.equal(value.to(tensors[tensor].dtype), tensors[tensor]), tensor

  report = reshard.convert(tmp_path / "dist", tmp_path / "vllm", to="vllm:tp=2", progress=False)
  assert all("_extra_state" in entry for entry in report.ignored), report.ignored
  assert reshard.verify(tmp_path / "dist", tmp_path / "vllm", progress=False)
