# SPDX-License-Identifier: Apache-2.0
"""The weights to trace, from what a caller holds."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import reshard
from reshard import _core
from reshard.tracing import _quantised
from reshard.tracing._types import TracingError, Weight, torch_dtype


def read(
  weights: Any, name: str
) -> tuple[_core.Model, list[Weight], _core.Layout | None]:
  """The model of the tensors that a loader is given, these tensors in its order, and if they are
  quantised the layout of what stores them."""
  if isinstance(weights, str | os.PathLike):
    weights = reshard.open_model(os.fspath(weights))
  if isinstance(weights, _core.Model) and weights.stored_as is not None:
    weights = _core.Layout.of_checkpoint(weights)
  stored = weights if isinstance(weights, _core.Layout) and weights.quantised else None
  if isinstance(weights, _core.Layout):
    weights = weights.model if stored is None else _quantised.files_of(weights)
  if isinstance(weights, _core.Model):
    model = weights
  elif isinstance(weights, Mapping):
    model = _core.Model.from_tensors(name, {n: _shape_dtype(n, t) for n, t in weights.items()})
  else:
    raise reshard.InvalidArgumentError(
      "weights: a reshard.Model or Layout, a path or a dict, not " + type(weights).__name__
    )
  return model, of_model(model), stored


def of_model(model: _core.Model) -> list[Weight]:
  """The tensors of a model, as plain values."""
  return [
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


def stored_tensors(folder: str) -> dict[str, tuple[tuple[int, ...], str]]:
  """{name: (shape, dtype)} of what the safetensors files of a folder hold, by name: `weights` for
  which data and scales of quantised tensors are tensors of their own."""
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
