# SPDX-License-Identifier: Apache-2.0
"""All ranks together hold every element of the checkpoint, for every architecture and key."""

import dataclasses

import numpy as np
import pytest

from oracle import expected_ranks
from oracle_tensor import Tensor

MEGATRON = (
  "tp=1",
  "tp=2",
  "tp=4",
  "tp=2,norms=separate",
  "tp=2,mla_down=fused,experts=sequential",
  "tp=2,pp=2,first=1,ep=2,etp=1",
  "tp=4,ep=2,etp=2",
)
VLLM = (
  "tp=1",
  "tp=2",
  "tp=4",
  "tp=2,dp=2",
  "tp=2,dp=2,ep=4",
  "tp=4,ep=4,placement=round_robin",
  "tp=2,ep=2,redundant=2",
  "tp=2,pp=2,transposed=1,w13=up_first",
)
NAMES = (
  "llama qwen3 qwen3-moe mixtral deepseek deepseek-noq kimi glm gpt-oss qwen3-next gemma3 nemotron "
  "nemotron-latent"
).split()
WITH_MTP = ("deepseek", "glm", "qwen3-next")


def numbered(model):
  """The model with every element replaced by a number of its own, from 1."""
  tensors, start = {}, 1
  for name, tensor in model.tensors.items():
    numbers = np.arange(start, start + tensor.data.size, dtype=np.uint64)
    tensors[name] = Tensor("U64", numbers.reshape(tensor.data.shape))
    start += tensor.data.size
  return dataclasses.replace(model, tensors=tensors)


def missing(model, layout):
  """Names of tensors of which no rank holds some element."""
  seen = np.zeros(1 + sum(tensor.data.size for tensor in model.tensors.values()), dtype=bool)
  for held in expected_ranks(model, layout):
    for part in held.values():
      seen[part.data] = True
  return [name for name, tensor in model.tensors.items() if not seen[tensor.data].all()]


@pytest.mark.parametrize("layout", [f"megatron:{keys}" for keys in MEGATRON])
@pytest.mark.parametrize("name", NAMES)
def test_megatron_ranks_hold_everything(name, layout, checkpoint):
  assert missing(numbered(checkpoint(name)[1]), layout) == []


@pytest.mark.parametrize("layout", [f"vllm:{keys}" for keys in VLLM])
@pytest.mark.parametrize("name", NAMES)
def test_vllm_ranks_hold_everything(name, layout, checkpoint):
  assert missing(numbered(checkpoint(name)[1]), layout) == []


@pytest.mark.parametrize("layout", ["megatron:tp=2,pp=2", "vllm:tp=2,mtp=1"])
@pytest.mark.parametrize("name", WITH_MTP)
def test_modules_for_multi_token_prediction(name, layout, checkpoint):
  model = numbered(checkpoint(name, mtp=1)[1])
  assert model.num_mtp() == 1
  copies = (".embed_tokens.weight", ".shared_head.head.weight")
  lost = missing(model, layout)
  assert [name for name in lost if not name.endswith(copies)] == []
