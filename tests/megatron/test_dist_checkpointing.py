# SPDX-License-Identifier: Apache-2.0
"""Protects: what Megatron-Core's dist_checkpointing writes, reshard reads to the byte: the same tensors
as a refit from the live modules delivers; and Megatron loads what reshard writes into modules that are
cut otherwise."""

import pytest
import torch
from serving import run, serving

import reshard

pytest.importorskip("psutil", reason="Megatron-Core's dist_checkpointing writes with psutil only")

import checkpoint_rank

SIZE = 2
SINGLE = {"non_homogeneous_layers": True}
# Each expert, and the halves of each matrix of gates and ups, under names of their own.
SEPARATE = SINGLE | {"singleton_local_shards": True}
CASES = [
  ("llama", "pp=2", SINGLE),
  ("llama", "tp=2", SEPARATE),
  ("qwen2", "tp=2", None),
  ("qwen3-moe", "ep=2", None),
  ("qwen3-moe", "ep=2", SEPARATE),
  ("glm", "tp=2,ep=2,etp=1", None),
  ("deepseek", "tp=2", None),
  ("deepseek-noq", "ep=2", None),
  ("qwen3-next", "tp=2", None),
  ("nemotron", "tp=2", None),
]
PREDICT_MORE = ("glm", "deepseek", "deepseek-noq", "qwen3-next")  # have modules for multi-token prediction
# How the modules are cut that load it, the options of torch_dist, and how Megatron asks for it.
LOADS = [
  ("llama", "tp=2", "pp=2", "", None),
  ("llama", "tp=2", "tp=2", "layers=single", SINGLE),
  ("qwen2", "tp=2", "", "", None),
  ("qwen3-moe", "tp=2", "ep=2", "", None),
  ("deepseek", "ep=2", "tp=2", "", None),
  ("qwen3-next", "tp=2", "", "", None),
  ("nemotron", "tp=2", "", "", None),
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
  assert model.weights.kind == "dcp"
  layout = reshard.layout("hf", model)
  assert {t.name for t in layout.local(0)} == set(whole)
  tensors = {t.name: torch.zeros(t.shape, dtype=whole[t.name].dtype) for t in layout.local(0)}
  buffers = reshard.RankBuffers(layout, {0: tensors})
  reshard.load_weights(model, buffers, rank=0, progress=False)
  for tensor, value in whole.items():
    assert value.abs().sum() > 0, tensor
    if name == "qwen3-next" and "norm" in tensor:
      # The checkpoint is read as Megatron trains this model, with norms centred on zero; these are not.
      assert torch.allclose(value.float() + 1, tensors[tensor].float(), atol=0.02), tensor
      continue
    assert torch.equal(value.to(tensors[tensor].dtype), tensors[tensor]), tensor

  to = "vllm:tp=2" + (",mtp=1" if name in PREDICT_MORE else "")
  report = reshard.convert(tmp_path / "dist", tmp_path / "vllm", to=to, progress=False)
  assert report.ignored == []
  assert reshard.verify(tmp_path / "dist", tmp_path / "vllm", progress=False)


@pytest.mark.parametrize("case", LOADS, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def test_megatron_loads_what_is_written_for_it(processes, tmp_path, case):
  name, written, loaded, options, metadata = case
  run(processes, "write", name, written, str(tmp_path), None)
  to = "torch_dist:" + ",".join(filter(None, ["shard=3", options]))
  source = tmp_path / "dist"
  if name != "qwen3-next":  # norms that Megatron centres on zero lose bits there
    source = tmp_path / "hf"
    reshard.convert(tmp_path / "dist", source, to="hf", progress=False)
  reshard.convert(source, tmp_path / "back", to=to, progress=False)
  assert len(list((tmp_path / "back").glob("__[0-9]*.distcp"))) == 3
  assert reshard.verify(tmp_path / "dist", tmp_path / "back", progress=False)
  run(processes, "load", name, loaded, str(tmp_path / "back"), str(tmp_path / "whole.pt"), metadata)


def test_experts_that_the_model_stacks_are_refused_by_name(processes, tmp_path):
  run(processes, "write", "gpt-oss", "ep=2", str(tmp_path), None)
  stacked = "experts.linear_fc1.weight0' is part of a tensor that stacks all experts"
  with pytest.raises(reshard.UnsupportedError, match=stacked):
    reshard.convert(tmp_path / "dist", tmp_path / "vllm", to="vllm:tp=2", progress=False)
  reshard.synthesize(tmp_path / "dist" / "config.json", tmp_path / "hf", progress=False)
  with pytest.raises(reshard.UnsupportedError, match="neither read nor written"):
    reshard.convert(tmp_path / "hf", tmp_path / "back", to="torch_dist", progress=False)


def test_layers_that_differ_are_not_stacked(processes, tmp_path):
  run(processes, "write", "deepseek", "tp=2", str(tmp_path), None)
  with pytest.raises(reshard.UnsupportedError, match="layers=stacked: the layers of the decoder differ"):
    reshard.convert(tmp_path / "dist", tmp_path / "back", to="torch_dist:layers=stacked", progress=False)
