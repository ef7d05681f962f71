# SPDX-License-Identifier: Apache-2.0
"""Models without weights, by transformers' own classes."""

from __future__ import annotations

import copy
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from reshard import _core
from reshard._arguments import checked
from reshard._errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
  from transformers import PretrainedConfig

#: As safetensors names them.
_DTYPES = {
  torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
  torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip


@checked
def model_of(
  config: str | os.PathLike[str] | Mapping[str, Any] | PretrainedConfig, path: str | os.PathLike[str]
) -> _core.Model:
  """The model of a config, of any class of transformers, without weights.

  config  a config.json, a folder with one, its content as a dict, or a config of transformers
  path    of the file to write, such as "qwen.model.json": the config, and the names, shapes and dtypes of
          the tensors that save_pretrained() would write. Every command takes it as --model, and
          reshard.open_model() opens it

  transformers builds the class of the config without memory. Weights are plain: what the config says of
  their quantisation is left out.
  Raises UnsupportedError if it has no class for the config, or cannot build it.
  """
  import transformers

  said, source = _content(config)
  for part in (said, *(v for v in said.values() if isinstance(v, dict))):
    part.pop("quantization_config", None)  # what is listed is plain
  try:
    if isinstance(source, pathlib.Path):
      of = transformers.AutoConfig.from_pretrained(source)
    else:
      of = transformers.CONFIG_MAPPING[said["model_type"]].from_dict(said) if source is None else source
    tensors = list(_saved(of))
  except Exception as error:
    why = " ".join(str(error).split()) or type(error).__name__
    raise UnsupportedError(f"transformers {transformers.__version__} cannot build this config: {why}") from error
  listed = [{"name": name, "dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)} for name, tensor in tensors]
  target = pathlib.Path(path)
  target.write_text(json.dumps(said | {"reshard_tensors": listed}, indent=1) + "\n", encoding="utf-8")
  return _core.open_model(target)


def _content(config: Any) -> tuple[dict[str, Any], Any]:
  """What a config says, and where transformers reads it: its path, itself, or None for a dict."""
  if isinstance(config, Mapping):
    return copy.deepcopy(dict(config)), None
  if hasattr(config, "to_json_string"):
    return json.loads(config.to_json_string(use_diff=False)), config
  path = pathlib.Path(config)
  path = path / "config.json" if path.is_dir() else path
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise InvalidArgumentError(f"{path}: is no config.json: {error}") from None
  if not isinstance(found, dict) or "model_type" not in found:
    raise InvalidArgumentError(f"{path}: is no config.json: it has no model_type")
  return found, path


def _saved(config: Any) -> Iterator[tuple[str, torch.Tensor]]:
  """The tensors that save_pretrained() would write, without their values."""
  from reshard.tracing.transformers import class_of

  with torch.device("meta"):
    module = class_of(config)._from_config(config, dtype=getattr(config, "dtype", None) or torch.bfloat16)
  yield from saved(module)


def saved(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
  """The tensors that save_pretrained() of a model without memory would write."""
  module.tie_weights()
  state = module.state_dict()
  tied = getattr(module, "all_tied_weights_keys", None) or {}
  kept = {name: tensor for name, tensor in state.items() if name not in tied}
  try:
    from transformers.core_model_loading import revert_weight_conversion
  except ImportError:  # transformers 4: modules have the names of files
    yield from kept.items()
    return
  yield from sorted(revert_weight_conversion(module, kept).items())
