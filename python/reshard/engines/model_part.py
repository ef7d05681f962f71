# SPDX-License-Identifier: Apache-2.0
"""The tensors of one model among all that a trainer sends to an engine."""

from __future__ import annotations

from dataclasses import replace

from reshard import _manifest as manifest
from reshard.engines.invitation import Invitation
from reshard.engines.parts import DRAFT
from reshard.lora import part_of

__all__ = ["ModelPart"]


class ModelPart:
  """The engine's own model, or its draft model, in a trainer's invitation. Factors of adapters are of neither.

  prefix  of its tensors' names among all that the trainer sends: DRAFT for a draft model

  Attributes: `said`, the invitation with this model's tensors only, under their own names; `wanted`, the names of those
  to update, None for all.
  """

  def __init__(self, said: Invitation, prefix: str = "") -> None:
    names = _own_names(said, prefix)
    self._numbers = [i for i, name in enumerate(names) if name is not None]
    table = [[names[i], *said.tensors[i][1:]] for i in self._numbers]
    self.wanted: set[str] | None = None
    if said.wanted is not None:
      wanted = set(said.wanted)
      self.wanted = {entry[0] for i, entry in zip(self._numbers, table, strict=True) if i in wanted}
    config = said.draft_config or "" if prefix else said.config
    self.said = replace(said, tensors=table, config=config, wanted=None)

  def holds(self, own: manifest.Manifest, label: str) -> manifest.Manifest:
    """What a worker receives of this model, in the numbers of all that the trainer sends.

    label  before the names of local tensors, which must be unique on a worker
    """
    return [
      {
        **held,
        "name": label + held["name"],
        "parts": [{**part, "tensor": self._numbers[part["tensor"]]} for part in held["parts"]],
      }
      for held in own
    ]


def _own_names(said: Invitation, prefix: str) -> list[str | None]:
  """For each tensor that the trainer sends: its name in the model of this prefix; None if it is not of this model."""
  names = [str(name) for name, *_ in said.tensors]
  if prefix:
    return [name.removeprefix(prefix) if name.startswith(prefix) else None for name in names]
  return [
    None if name.startswith(DRAFT) or (said.adapters and part_of(name) is not None) else name for name in names
  ]
