# SPDX-License-Identifier: Apache-2.0
"""What of a trainer's layout an engine gets: weights, adapters, adapters merged into weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import reshard
from reshard.engines import manifest
from reshard.engines.invitation import Invitation
from reshard.live._names import listed, matches
from reshard.lora import Adapter, Merge
from reshard.lora._names import adapters_in

__all__ = ["Parts"]


class Parts:
  """Checks `only`, `adapters` and `merge` of a trainer against its layout. Nothing is communicated.

  Raises InvalidArgumentError for a pattern that matches nothing, and for adapters in the layout of which nothing is
  said; UnsupportedError for adapters that are more than A and B, and for a part of the weights.

  Attributes: `table`, of the tensors that the engine gets; `adapters`, for its invitation; `merge`, the configs.
  """

  def __init__(
    self,
    layout: reshard.Layout,
    only: Iterable[str],
    adapters: Mapping[str, Any] | None,
    merge: Mapping[str, Any] | None,
  ) -> None:
    names = [t.name for t in layout.model.tensors]
    there = adapters_in(names)
    self.merge = dict(merge or {})
    given = {name: Adapter(**a) if isinstance(a, Mapping) else a for name, a in (adapters or {}).items()}
    self.adapters = {name: adapter.said() for name, adapter in given.items()}
    _check_adapters(there, self.adapters, self.merge)
    factors = {name for parts in there.values() for name in parts}
    kept = [name for name in names if not (self.merge and name in factors)]
    patterns = [only] if isinstance(only, str) else list(only)
    self.table = manifest.table_of(layout.model, set(_matching(kept, patterns) if patterns else kept))
    _check_kept({entry[0] for entry in self.table}, set(names), factors, self.adapters)

  def merged(
    self, layout: reshard.Layout, tensors: Mapping[str, Any], invitation: Invitation, rank: int
  ) -> Merge:
    """The weights with the adapters merged in. Collective over the trainer."""
    group = None
    if invitation.trainers > 1:
      group = reshard.join(
        invitation.url,
        rank=rank,
        size=invitation.trainers,
        secret=invitation.secret,
        job=f"{invitation.job}-factors",
        transport=invitation.transport,
        timeout=invitation.deadline,
      )
    return Merge(layout, tensors, self.merge, rank=rank, group=group, timeout=invitation.deadline)


def _check_adapters(there: Mapping[str, Any], adapters: Mapping[str, Any], merge: Mapping[str, Any]) -> None:
  if adapters and merge:
    raise reshard.InvalidArgumentError("adapters= and merge= are two ways of one: the engine adds them, or the trainer")
  said = set(adapters) | set(merge)
  for name in sorted(set(there) - said):
    raise reshard.InvalidArgumentError(
      f"the layout holds the adapter '{name}': pass adapters= for an engine that loads it, or merge= to add it to the weights"
    )
  for name in sorted(said - set(there)):
    raise reshard.InvalidArgumentError(
      f"the adapter '{name}' is not in the layout; its adapters are {listed(sorted(there)) or 'none'}"
    )


def _matching(names: list[str], patterns: list[str]) -> list[str]:
  found: set[str] = set()
  for pattern in patterns:
    test = matches(pattern)
    hits = [name for name in names if test(name)]
    if not hits:
      raise reshard.InvalidArgumentError(f"only: no tensor's name matches '{pattern}'")
    found.update(hits)
  return [name for name in names if name in found]


def _check_kept(kept: set[str], names: set[str], factors: set[str], adapters: Mapping[str, Any]) -> None:
  """All weights of the model move or none; and all of an adapter."""
  weights = names - factors
  left = sorted(weights - kept)
  if left and len(left) < len(weights):
    raise reshard.UnsupportedError(
      f"only= leaves out some of the model's weights ({listed(left)}): an engine takes all of them, or none"
    )
  if adapters:
    left = sorted(factors - kept)
    if left:
      raise reshard.UnsupportedError(f"only= leaves out {listed(left)}: an engine takes an adapter whole")
