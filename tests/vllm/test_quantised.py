# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints, by format and quant_method: data, scales and factors on every rank."""

import pytest
import world

# Scales go as the checkpoint has them; shards of some formats begin inside what a scale is for.
_STORED = ",quant_grid=tensor"
# model, format, quant_method, sizes
_ROWS = [
  ("llama", "fp8_block", "fp8", dict(tp=2)),
  ("llama", "fp8_tensor", "fp8", dict(tp=2, pp=2)),
  ("qwen3-moe", "fp8_block", "fp8", dict(tp=2)),
  ("qwen3-moe", "fp8_block", "fp8", dict(tp=2, dp=2, ep=True)),
  ("qwen3-moe", "fp8_tensor", "fp8", dict(tp=2)),
  ("qwen3-moe-384", "fp8_block", "fp8", dict(tp=2)),
  ("qwen3-moe-384", "fp8_block", "fp8", dict(tp=2, dp=2)),
  ("qwen3-moe-384", "fp8_block", "fp8", dict(tp=2, dp=2, ep=True)),
  ("mixtral", "fp8_block", "fp8", dict(tp=2, pp=2)),
  ("deepseek", "fp8_block", "fp8", dict(tp=2)),
  ("glm", "fp8_block", "fp8", dict(tp=2, dp=2, ep=True)),
  ("qwen3-next", "fp8_block", "fp8", dict(tp=2)),
  ("nemotron", "fp8_tensor", "fp8", dict(tp=2)),
  ("llama", "fp8_block", "compressed-tensors", dict(tp=2)),
  ("llama", "fp8_tensor", "compressed-tensors", dict(tp=2)),
  ("llama", "fp8_channel", "compressed-tensors", dict(tp=4)),
  ("qwen3-moe", "fp8_block", "compressed-tensors", dict(tp=2)),
  ("qwen3-moe", "fp8_channel", "compressed-tensors", dict(tp=2, dp=2)),
  ("qwen3-moe", "mxfp8", "compressed-tensors", dict(tp=4)),
  ("qwen3-moe", "mxfp4", "compressed-tensors", dict(tp=2, ep=True)),
  ("qwen3-moe", "nvfp4_divisor", "compressed-tensors", dict(tp=2, dp=2, ep=True)),
  ("llama", "fp8_block", "modelopt", dict(tp=2)),
  ("llama", "fp8_channel", "modelopt", dict(tp=2)),
  ("qwen3-moe", "mxfp8", "modelopt", dict(tp=2, ep=True)),
  ("qwen3-moe", "nvfp4", "modelopt", dict(tp=2)),
  ("nemotron", "nvfp4", "modelopt", dict(tp=2)),
  ("gpt-oss", "mxfp4", "mxfp4", dict(tp=2)),
  ("gpt-oss", "mxfp4", "mxfp4", dict(tp=2, dp=2, ep=True)),
  ("gpt-oss-9", "mxfp4", "mxfp4", dict(tp=2)),
  ("gpt-oss-9", "mxfp4", "mxfp4", dict(tp=4)),
  ("gpt-oss-9", "mxfp4", "mxfp4", dict(tp=2, dp=2)),
]
# What vLLM's own loaders refuse: ModelOpt's experts are FP8 per tensor, MXFP8 or NVFP4.
_REFUSED = [
  ("qwen3-moe", "fp8_block", "modelopt"),
  ("qwen3-moe", "fp8_channel", "modelopt"),
]


def _named(row):
  return "-".join([*row[:3], *(f"{key}{value}" for key, value in row[3].items())])


@pytest.mark.parametrize("name, quant, method, sizes", _ROWS, ids=map(_named, _ROWS))
def test_every_rank_holds_what_vllm_loads(name, quant, method, sizes, checkpoint, compare):
  folder = checkpoint(name, f"hf:quant={quant},quant_method={method}")
  more = f",quant={quant},quant_method={method}{_STORED}"
  compare(folder, sizes, more, by_device=r"mixer\.gate\.weight$")


@pytest.mark.parametrize("name, quant, method", _REFUSED)
def test_vllm_refuses_itself(name, quant, method, checkpoint):
  folder = checkpoint(name, f"hf:quant={quant},quant_method={method}")
  with pytest.raises(RuntimeError, match="is invalid for input of size"):
    world.held_by_vllm(world.engine_config(folder, {}), folder, 0)
