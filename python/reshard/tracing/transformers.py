# SPDX-License-Identifier: Apache-2.0
"""Layouts of transformers' own modules, traced from their loader.

The loader of release 5 renames, stacks and permutes what a checkpoint holds (experts of a layer
become one tensor); that of release 4 copies.
"""

import os
import unittest.mock
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers

import reshard.tracing
from reshard import _core
from reshard.tracing import Traced, trace

__all__ = ["build_and_load", "class_of", "layout", "of_notation", "trace_transformers"]


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


def class_of(config: Any) -> Any:
  """The class that `architectures` of a config names; without one that transformers has, the first
  of its automatic classes that takes the config: with a language model's head, with one over
  images and text, without a head."""
  for name in getattr(config, "architectures", None) or ():
    named = getattr(transformers, name, None)
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
      return named
  automatic = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModel")
  for auto in filter(None, (getattr(transformers, name, None) for name in automatic)):
    if type(config) in auto._model_mapping:
      return auto._model_mapping[type(config)]
  raise reshard.UnsupportedError(
    f"transformers {transformers.__version__} has no model for {type(config).__name__}"
  )


def build_and_load(config: Any, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
  """`build` and `load` of reshard.traced() for a config's own class."""
  of = class_of(config)

  def build(rank: int) -> torch.nn.Module:
    module: torch.nn.Module = of._from_config(
      config, dtype=dtype or getattr(config, "dtype", None) or torch.bfloat16
    )
    return module

  newest = int(transformers.__version__.split(".")[0]) >= 5
  return build, _load_by_mapping if newest else _load_by_name


def trace_transformers(
  model: str | os.PathLike[str], *, dtype: torch.dtype | None = None, **options: Any
) -> Traced:
  """reshard.tracing.trace() of a model's own class on one rank.

  model    a checkpoint's folder, or with `weights` (as of traced()) that of a config.json
  dtype    of the module; by default the config's
  options  of trace()
  """
  config = transformers.AutoConfig.from_pretrained(os.fspath(model))
  build, load = build_and_load(config, dtype)
  key = {
    "engine": f"transformers {transformers.__version__}",
    "torch": torch.__version__,
    "config": config.to_dict(),
    "dtype": str(dtype),
  }
  weights = options.pop("weights", os.fspath(model))
  name = f"traced transformers {transformers.__version__}"
  return trace(build, load, weights, key=key, name=name, **options)


def layout(model: str | os.PathLike[str], **options: Any) -> _core.Layout:
  """trace_transformers(model, ...).layout"""
  return trace_transformers(model, **options).layout


def of_notation(model: str, weights: Any, keys: Mapping[str, str]) -> Traced:
  """trace_transformers() by the keys of a layout "traced:transformers": dtype."""
  if unknown := keys.keys() - {"dtype"}:
    raise reshard.InvalidArgumentError(f"unknown key '{min(unknown)}'; known are dtype and offset")
  dtypes = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.bfloat16, torch.float16)}
  said = keys.get("dtype")
  if said is not None and said not in dtypes:
    raise reshard.InvalidArgumentError(f"dtype={said} must be one of {', '.join(dtypes)}")
  return trace_transformers(model, weights=weights, dtype=None if said is None else dtypes[said])
