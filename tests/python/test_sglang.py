# SPDX-License-Identifier: Apache-2.0
"""Checkpoints go to SGLang's ranks and come back byte for byte; what ranks share is equal."""

import numpy as np
import pytest

import program
from oracle_model import read_checkpoint
from oracle_tensor import difference

_ROWS = (
  ("qwen3-moe", "sglang:tp=4,dp=2,ep=2,redundant=2"),
  ("mixtral", "sglang:tp=2,pp=2,w13=up_first"),
  ("deepseek", "sglang:tp=4,dp=2,ep=4,shared=whole"),
  ("deepseek", "sglang:tp=2,ep=2,shared=fused"),
  ("kimi", "sglang:tp=2,pp=2,replicas=2"),
  ("glm", "sglang:tp=4,ep=2,dp=2,dp_lm_head=1"),
  ("gpt-oss", "sglang:tp=2,transposed=1"),
  ("gpt-oss", "sglang:tp=4,dp=2,ep=2,pp=2"),
  ("qwen3-next", "sglang:tp=2,ep=2"),
  ("gemma3", "sglang:tp=2,prefix=language_model"),
)


@pytest.mark.parametrize("name, layout", _ROWS, ids=[f"{name}-{layout}" for name, layout in _ROWS])
def test_there_and_back(name, layout, checkpoint, tmp_path):
  folder, model = checkpoint(name)
  out = program.convert(folder, tmp_path / "ranks", "hf", layout)
  back = program.convert(out, tmp_path / "back", layout, "hf")
  wrong = difference(model.tensors, read_checkpoint(back))
  assert not wrong, f"{layout}, back to hf:\n" + "\n".join(wrong)


def test_shared_experts_are_experts_when_fused(checkpoint, tmp_path):
  """Two ranks of whole experts: the last ones of both are the parts of the one shared tensor."""
  folder, model = checkpoint("deepseek")
  out = program.convert(folder, tmp_path / "ranks", "hf", "sglang:tp=2,ep=2,shared=fused")
  ranks = [program.RankFolder(out).rank(r) for r in range(2)]
  name = "model.layers.1.mlp.experts.w2_weight"
  shared = model.tensors["model.layers.1.mlp.shared_experts.down_proj.weight"].data
  width = ranks[0][name].data.shape[2]
  for rank in ranks:
    own = rank[name].data[-(shared.shape[1] // width) :]
    assert np.array_equal(np.concatenate(list(own), axis=1), shared)
