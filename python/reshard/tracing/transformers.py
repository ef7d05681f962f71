# SPDX-License-Identifier: Apache-2.0
"""Layouts of transformers' own modules, traced from their loader.

The loader of release 5 renames, stacks and permutes what a checkpoint holds (experts of a layer
become one tensor); that of release 4 copies.
"""

import os
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
import transformers

import reshard.tracing
from reshard import _core

__all__ = ["build_and_load", "layout"]


def _load_by_mapping(module: Any, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
  """transformers 5: from_pretrained() without files."""
  from transformers.conversion_mapping import get_model_conversion_mapping
  from transformers.core_model_loading import convert_and_load_state_dict_in_model
  from transformers.modeling_utils import LoadStateDictConfig

  device = next(module.parameters()).device
  mapping: Any = get_model_conversion_mapping(module, None, None)
  config = LoadStateDictConfig(
    device_map={"": device},
    dtype=next(module.parameters()).dtype,
    weight_mapping=mapping,
  )
  # Its threads would not be seen.
  with unittest.mock.patch.dict(os.environ, {"HF_DEACTIVATE_ASYNC_LOAD": "1"}):
    found = convert_and_load_state_dict_in_model(module, dict(weights), config)
  info = found[0] if isinstance(found, tuple) else found
  if wrong := {**info.conversion_errors, **{str(n): "has another shape" for n in info.mismatched_keys}}:
    name, what = next(iter(wrong.items()))
    raise reshard.tracing.TracingError(f"transformers cannot load {name}: {what}")
  module.tie_weights()


def _load_by_name(module: Any, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
  """transformers 4."""
  module.load_state_dict(dict(weights), strict=False)


def build_and_load(config: Any, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
  """`build` and `load` of reshard.traced() for AutoModelForCausalLM of a config."""

  def build(rank: int) -> torch.nn.Module:
    module: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(
      config, dtype=dtype or getattr(config, "dtype", None) or torch.bfloat16
    )
    return module

  newest = int(transformers.__version__.split(".")[0]) >= 5
  return build, _load_by_mapping if newest else _load_by_name


def layout(model: str | os.PathLike[str], **options: Any) -> _core.Layout:
  """The layout of AutoModelForCausalLM on one rank. `model`: a checkpoint's folder, or with
  `weights` (as of traced()) that of a config.json. `options`: those of traced()."""
  config = transformers.AutoConfig.from_pretrained(os.fspath(model))
  build, load = build_and_load(config)
  key = {
    "engine": f"transformers {transformers.__version__}",
    "torch": torch.__version__,
    "config": config.to_dict(),
  }
  weights = options.pop("weights", os.fspath(model))
  name = f"traced transformers {transformers.__version__}"
  return reshard.tracing.traced(build, load, weights, key=key, name=name, **options)
