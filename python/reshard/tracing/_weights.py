# SPDX-License-Identifier: Apache-2.0
"""The weights to trace, from what a caller holds."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import reshard
from reshard import _core
from reshard.tracing._types import TracingError, Weight, torch_dtype


def read(weights: Any, name: str) -> tuple[_core.Model, list[Weight]]:
  """The model whose tensors the layout is about, and these tensors in its order."""
  if isinstance(weights, str | os.PathLike):
    weights = _open(os.fspath(weights))
  if isinstance(weights, _core.Model):
    if weights.stored_as is not None:
      raise reshard.UnsupportedError(
        f"{weights.name}: its tensors are plain values, but its files hold {weights.stored_as}, and "
        "that is what a loader is given; trace with the path of the checkpoint"
      )
    model = weights
  elif isinstance(weights, Mapping):
    model = _core.Model.from_tensors(name, {n: _shape_dtype(n, t) for n, t in weights.items()})
  else:
    raise reshard.InvalidArgumentError(
      f"weights: a reshard.Model, a path or a dict, not {type(weights).__name__}"
    )
  return model, [
    Weight(t.name, tuple(t.stored_shape), torch_dtype(t.dtype.name.upper()), tuple(t.shape))
    for t in model.tensors
  ]


def _shape_dtype(name: str, tensor: Any) -> tuple[tuple[int, ...], Any]:
  if isinstance(tensor, tuple) and len(tensor) == 2:
    shape, dtype = tensor
  else:
    shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
  if shape is None or dtype is None:
    raise reshard.InvalidArgumentError(
      f"weights['{name}']: (shape, dtype) or a tensor, not {type(tensor).__name__}"
    )
  return tuple(int(n) for n in shape), dtype


def _open(path: str) -> Any:
  """A model, or for a quantised checkpoint the tensors of its files."""
  model = reshard.open_model(path)
  if model.stored_as is None:
    return model
  return stored_tensors(path)


def stored_tensors(folder: str) -> dict[str, tuple[tuple[int, ...], str]]:
  """{name: (shape, dtype)} of what the safetensors files of a folder hold, by name."""
  found: dict[str, tuple[tuple[int, ...], str]] = {}
  for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
    with path.open("rb") as file:
      size = int.from_bytes(file.read(8), "little")
      if size > 100_000_000:
        raise TracingError(f"{path}: its header has {size} bytes")
      header = json.loads(file.read(size))
    for name, entry in header.items():
      if name != "__metadata__":
        found[name] = (tuple(entry["shape"]), entry["dtype"])
  return dict(sorted(found.items()))
