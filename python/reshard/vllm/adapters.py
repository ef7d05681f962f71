# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of a worker of vLLM.

vLLM reads an adapter from its folder when a request names it and the worker has it not: each worker keeps it whole on
the host, and copies its share of A and B into the slots of its layers. So what an update changes is the folder, on
each host once; then the workers forget what they have read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import reshard
import torch
from reshard import _manifest as manifest
from reshard.engines.invitation import Invitation
from reshard.lora._folder import Folder, folders_of
from reshard.tracing._types import torch_dtype

if TYPE_CHECKING:
  from reshard.vllm.routes import Raw
  from vllm.config import VllmConfig

__all__ = ["Adapters"]


class Adapters:
  """The adapters that a trainer updates.

  Raises UnsupportedError if the engine takes no adapters, or none of such a rank.
  """

  def __init__(self, invitation: Invitation, model: torch.nn.Module, vllm_config: VllmConfig) -> None:
    self._model, self._table = model, invitation.tensors
    self._folders = list(folders_of(invitation.adapters, invitation.tensors))
    if self._folders:
      self._check(invitation, vllm_config)

  def _check(self, invitation: Invitation, vllm_config: VllmConfig) -> None:
    lora = getattr(vllm_config, "lora_config", None)
    if lora is None:
      raise reshard.UnsupportedError("the engine takes no adapters: start it with --enable-lora, or let the trainer merge them")
    shapes = {name: shape for name, _, shape, _ in invitation.tensors}
    for folder in self._folders:
      for name, part in folder.parts.items():
        if part.kind.endswith("A") and shapes[name][0] > lora.max_lora_rank:
          raise reshard.UnsupportedError(
            f"'{name}' has rank {shapes[name][0]}, the engine takes at most {lora.max_lora_rank}: --max-lora-rank"
          )

  @contextlib.contextmanager
  def electing(self, job: str, rank: int) -> Iterator[None]:
    """While the workers decide who writes: `elect()` once all are here."""
    try:
      for folder in self._folders:
        folder.mark(job, rank)
      yield
    finally:
      for folder in self._folders:
        folder.unmark()

  def elect(self) -> None:
    """Finds out which folders this worker writes."""
    for folder in self._folders:
      folder.elect()

  def holds(self, model: reshard.Model) -> manifest.Manifest:
    """What this worker receives: all of the adapters whose folders it writes. `model`: of all tensors."""
    mine = {name for folder in self._folders if folder.writes for name in folder.parts}
    whole = manifest.describe(reshard.layout("hf", model), 0) if mine else []
    return [entry for entry in whole if entry["name"] in mine]

  def write(self, raw: Raw) -> None:
    """Writes what has arrived beside the present files. Raises OSError.

    raw  the bytes of a tensor by its name
    """
    forms = {name: (tuple(shape), torch_dtype(dtype.upper())) for name, dtype, shape, _ in self._table}
    for folder in self._folders:
      if folder.writes:
        folder.write({name: _viewed(raw(name), *forms[name]) for name in folder.parts})

  def commit(self) -> None:
    """Puts the new files in place, and lets the worker forget the old ones. Raises OSError."""
    for folder in self._folders:
      folder.commit()
    manager: Any = getattr(self._model, "lora_manager", None)
    if self._folders and manager is not None:
      manager.remove_all_adapters()


def _viewed(raw: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
  return raw.reshape(-1).view(torch.uint8).view(dtype).view(shape)
