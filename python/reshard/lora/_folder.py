# SPDX-License-Identifier: Apache-2.0
"""Adapters as engines load them: folders with PEFT's files, which an update writes anew."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard._errors import InvalidArgumentError
from reshard.lora._config import as_dict, for_inference
from reshard.lora._names import Part, adapters_in

__all__ = ["Adapter", "Folder", "folders_of"]

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class Adapter:
  """Where an engine loads an adapter from.

  folder  on the engine's hosts, absolute. Requests name it: `vllm serve --lora-modules NAME=FOLDER`. In memory
          (/dev/shm) no disk is written to. Whoever may write there may replace the adapter
  config  a peft.LoraConfig, or the dict in its adapter_config.json; None: the folder has that file
  """

  folder: str | os.PathLike[str]
  config: Any = None

  def said(self) -> dict[str, Any]:
    """As JSON. Raises InvalidArgumentError, and UnsupportedError for adapters that are more than A and B."""
    folder = os.fspath(self.folder)
    if not os.path.isabs(folder):
      raise InvalidArgumentError(f"the folder '{folder}' of an adapter is not absolute")
    return {"folder": folder, "config": None if self.config is None else for_inference(as_dict(self.config))}


class Folder:
  """An adapter's folder, as one of an engine's workers sees it.

  Workers that see the same folder agree on one that writes it: each leaves a mark, and the lowest rank does.
  """

  def __init__(self, said: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
    self.parts = dict(parts)
    self.writes = False
    self._path = Path(str(said["folder"]))
    self._config = said["config"]
    self._mark: Path | None = None

  def mark(self, job: str, rank: int) -> None:
    """Leaves this worker's mark. Raises OSError if the folder cannot be written."""
    self._path.mkdir(parents=True, exist_ok=True)
    self._mark = self._path / f".{hashlib.sha256(job.encode()).hexdigest()[:16]}.{rank}"
    self._mark.touch()

  def elect(self) -> None:
    """Finds out whether this worker writes, when all have left their marks."""
    assert self._mark is not None
    marks = self._path.glob(f"{self._mark.stem}.*")
    self.writes = self._mark == min(marks, key=lambda mark: int(mark.suffix[1:]))
    if self._config is None and not (self._path / _CONFIG).is_file():
      raise InvalidArgumentError(f"'{self._path}' has no {_CONFIG}: pass the adapter's config")

  def unmark(self) -> None:
    """Takes this worker's mark away. Idempotent."""
    if self._mark is not None:
      self._mark.unlink(missing_ok=True)
      self._mark = None

  def write(self, tensors: Mapping[str, Any]) -> None:
    """Writes new files beside the present ones, which stay. Raises OSError."""
    from safetensors.torch import save

    if not self.writes:
      return
    data = save({part.file_name: tensors[name].detach().cpu().contiguous() for name, part in self.parts.items()})
    (self._path / f".{_WEIGHTS}").write_bytes(data)
    if self._config is not None:
      (self._path / f".{_CONFIG}").write_text(json.dumps(self._config, indent=2, sort_keys=True))

  def commit(self) -> None:
    """Puts the new files in the place of the old ones. Raises OSError."""
    if not self.writes:
      return
    for name in (_CONFIG, _WEIGHTS):
      if name == _WEIGHTS or self._config is not None:
        os.replace(self._path / f".{name}", self._path / name)


def folders_of(said: Mapping[str, Mapping[str, Any]], table: Iterable[Sequence[Any]]) -> Iterator[Folder]:
  """The folders of an invitation's adapters, which hold the parts that are in its table of tensors.

  Raises InvalidArgumentError if a part belongs to no adapter, or an adapter has none.
  """
  found = adapters_in(str(entry[0]) for entry in table) if said else {}
  if set(found) != set(said):
    raise InvalidArgumentError(f"adapters {sorted(said)} of the trainer, but its tensors are of {sorted(found)}")
  for name in sorted(found):
    yield Folder(said[name], found[name])
