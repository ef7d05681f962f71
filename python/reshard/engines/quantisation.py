# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a model one side of an update holds quantised, and how.

Messages have layouts of plain values; their receiver makes the layout of data and scales.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import reshard

__all__ = ["Quantisation"]


@dataclass(frozen=True)
class Quantisation:
  """A format and what is stored in it.

  Attributes:
    format: such as "fp8_block" (docs/quantisation.md).
    tensors: canonical names.
    grid: where blocks are counted from, "tensor" or "local".
    method: the quant_method whose names and shapes data and scales have, or None.
  """

  format: str
  tensors: tuple[str, ...]
  grid: str = "tensor"
  method: str | None = None

  @classmethod
  def of_layout(cls, layout: reshard.Layout) -> Quantisation | None:
    """That of a layout; None if it is plain."""
    if layout.quant_format is None:
      return None
    names = tuple(layout.quant_tensors)
    return cls(layout.quant_format, names, layout.quant_grid or "tensor", layout.quant_method)

  @classmethod
  def of_checkpoint(cls, folder: str | os.PathLike[str], held: Sequence[str]) -> Quantisation | None:
    """That of a checkpoint, for a trainer that holds tensors of these names; None if the trainer
    holds data and scales as the files have them.

    Errors: UnsupportedError for a quantisation that reshard does not know, and for integers, unless
    the trainer holds the files' own.
    """
    model = reshard.open_model(folder)
    if model.decoded_from is not None:
      raise reshard.UnsupportedError(
        f"{os.fspath(folder)}: is stored as {model.decoded_from}, which is read only: an engine that holds such "
        "weights cannot be updated; start it on plain ones (reshard convert ... --to hf)"
      )
    if model.stored_as is None:
      raise reshard.UnsupportedError(
        f"{os.fspath(folder)}: reshard does not know its quantization_config, and the trainer's "
        "tensors are plain"
      )
    stored = reshard.Layout.of_checkpoint(model)
    files = {t.file_name for rank in stored.ranks for t in stored.local(rank)}
    if files <= set(held):
      return None
    if model.stored_as.lower().startswith(("i4", "i8", "u8", "int")):
      raise reshard.UnsupportedError(
        f"{os.fspath(folder)}: is stored as {model.stored_as}; engines with integer weights are not updated "
        "from plain tensors (none was tested)"
      )
    return cls.of_layout(stored)

  @classmethod
  def from_message(cls, said: dict[str, Any] | None) -> Quantisation | None:
    """What `as_dict()` gave."""
    if said is None:
      return None
    method = said["method"]
    return cls(
      str(said["format"]),
      tuple(map(str, said["tensors"])),
      str(said["grid"]),
      None if method is None else str(method),
    )

  def as_dict(self) -> dict[str, Any]:
    """As JSON takes it."""
    return {
      "format": self.format,
      "tensors": list(self.tensors),
      "grid": self.grid,
      "method": self.method,
    }

  def of(self, values: reshard.Layout, files: bool = False) -> reshard.Layout:
    """The layout of data and scales. `files`: with the names and shapes of a checkpoint's files."""
    return reshard.quantise_layout(
      values, self.format, self.tensors, grid=self.grid, method=self.method, files=files
    )
