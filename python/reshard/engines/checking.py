# SPDX-License-Identifier: Apache-2.0
"""The check of an engine against its trainer's tensors: each worker gets them whole, some at a time, loads them freshly, and
compares. docs/check.md."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import reshard
from reshard import _manifest as manifest
from reshard.engines.invitation import InvitedLink
from reshard.engines.quantisation import Quantisation

if TYPE_CHECKING:
  from reshard.check import Report

__all__ = ["NOW", "UPDATE", "WholeTensors", "chosen", "reports", "serve"]

#: What an update says of a check: only check, or check what has arrived and refuse to serve if it differs.
NOW, UPDATE = "now", "update"
#: The most bytes of values that a worker gets at once, beside a tensor that is larger.
_MAX_BYTES = 256 << 20


def chosen(version: int, share: float) -> bool:
  """Whether the update to a version is checked, if this share of them is: the same on all ranks, and in each run."""
  drawn = int.from_bytes(hashlib.blake2b(str(version).encode(), digest_size=8).digest(), "little")
  return drawn < share * 2.0**64


class WholeTensors:
  """A trainer's tensors, whole, under a checkpoint's names, for all workers of an engine. Collective over both.

  source   the trainers' layout
  holds    of a worker: what it wants, equal on all; of a trainer nothing
  quant    of a worker: how it wants them quantised
  tensors  of a trainer: its own

  Errors: as of a session; UnsupportedError if workers want different things.
  """

  def __init__(
    self,
    link: InvitedLink,
    source: reshard.Layout,
    holds: manifest.Manifest | None = None,
    quant: Quantisation | None = None,
    tensors: Mapping[str, Any] | None = None,
  ) -> None:
    self._link, self._source, self._tensors = link, source, tensors
    first = link.invitation.trainers
    wanted = link.gather({"holds": holds or [], "quant": quant and quant.as_dict()})[first:]
    if any(other != wanted[0] for other in wanted):
      raise reshard.UnsupportedError("the engine's workers load different checkpoints: they cannot be checked together")
    self._holds, self._quant = wanted[0]["holds"], Quantisation.from_message(wanted[0]["quant"])
    self._model = manifest.model_of(link.invitation.tensors)
    self._workers = range(first, link.size)

  def send(self) -> None:
    """Of a trainer: sends all of them, once."""
    for target in self._targets():
      self._refit(target, None)

  def receive(self) -> Iterator[tuple[str, reshard.Tensor]]:
    """Of a worker: all of them, by the names of the layout. Must be read to its end; a tensor's memory is valid until the next."""
    for target in self._targets():
      memory = reshard.RankBuffers.allocate(target, [self._link.rank], shared=True).tensors(self._link.rank)
      self._refit(target, memory)
      yield from memory.items()

  def _targets(self) -> Iterator[reshard.Layout]:
    for portion in _portions(self._holds):
      values = manifest.build("check", self._model, dict.fromkeys(self._workers, portion), omit=True)
      yield values if self._quant is None else self._quant.of(values)

  def _refit(self, target: reshard.Layout, memory: Mapping[str, Any] | None) -> None:
    session = self._link.session(self._source, target, self._tensors, memory)
    try:
      session.refit(version=1)
    finally:
      session.close()


def _portions(holds: manifest.Manifest) -> Iterator[manifest.Manifest]:
  """Neighbours in the order of a checkpoint, that together are not too large."""
  portion: manifest.Manifest = []
  size = 0
  for entry in holds:
    mine = 4
    for n in entry["shape"]:
      mine *= int(n)
    if portion and size + mine > _MAX_BYTES:
      yield portion
      portion, size = [], 0
    portion.append(entry)
    size += mine
  if portion:
    yield portion


def serve(link: InvitedLink, source: reshard.Layout, tensors: Mapping[str, Any]) -> Report:
  """A trainer's part of a check: the report of all workers. Collective."""
  whole = WholeTensors(link, source, tensors=tensors)
  whole.send()
  if differs(link, False):  # a second fresh load tells what nothing sets
    whole.send()
  return reports(link, None)


def differs(link: InvitedLink, mine: bool) -> bool:
  """Collective: whether something differs on a rank."""
  return any(said["differs"] for said in link.gather({"differs": mine}))


def reports(link: InvitedLink, mine: Report | None) -> Report:
  """Collective: the reports of all workers as one; `mine` is this worker's."""
  from reshard.check import Report

  said: Sequence[Any] = link.gather({"report": None if mine is None else mine.as_dict()})
  return Report.of([Report.from_dict(one["report"]) for one in said[link.invitation.trainers :]])
