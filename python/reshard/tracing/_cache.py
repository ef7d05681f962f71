# SPDX-License-Identifier: Apache-2.0
"""Traced layouts on disk: one file for each digest of what they depend on."""

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from reshard.tracing._types import Weight

# Raised when traces of the same input may come out differently.
_VERSION = 1


def folder() -> pathlib.Path | None:
  """Where layouts are kept: $RESHARD_CACHE, or "reshard" in $XDG_CACHE_HOME or ~/.cache. None if
  RESHARD_CACHE is "off"."""
  said = os.environ.get("RESHARD_CACHE", "")
  if said == "off":
    return None
  if said:
    return pathlib.Path(said)
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "reshard"


def path_of(
  key: Any, weights: Sequence[Weight], ranks: Sequence[int], name: str
) -> pathlib.Path | None:
  """The file for this key; None if nothing is kept."""
  where = folder()
  if where is None:
    return None
  tensors = [(w.name, w.shape, w.index_shape, str(w.dtype)) for w in weights]
  said = json.dumps([_VERSION, name, key, list(ranks), tensors], sort_keys=True, default=str)
  return where / f"layout-{hashlib.sha256(said.encode()).hexdigest()[:32]}.json"


def read(path: pathlib.Path) -> str | None:
  try:
    return path.read_text(encoding="utf-8")
  except OSError:
    return None


def write(path: pathlib.Path, text: str) -> None:
  """Puts the file there at once, or not at all: a cache that cannot be written is none."""
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
      "w", dir=path.parent, prefix=".layout-", encoding="utf-8", delete=False
    ) as file:
      file.write(text)
    pathlib.Path(file.name).replace(path)
  except OSError:
    return
