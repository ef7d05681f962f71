# SPDX-License-Identifier: Apache-2.0
"""What of a trainer's layout an engine gets: weights, adapters, adapters merged into weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reshard
from reshard import _manifest as manifest
from reshard._names import listed, matches
from reshard.engines.invitation import Invitation
from reshard.engines.link import Link
from reshard.lora import Adapter, Merge
from reshard.lora._config import changes_base
from reshard.lora._names import adapters_in, whole_adapters_in

__all__ = ["DRAFT", "Draft", "Merging", "Parts", "config_of"]

#: What the names of a draft model's tensors begin with, beside the engine's own model.
DRAFT = "draft:"


@dataclass(frozen=True)
class Draft:
  """A draft model (EAGLE, MTP heads, a small model), of the trainer's ranks.

  layout   over the same ranks as the model's, plain
  tensors  this rank's, as those of the model
  """

  layout: reshard.Layout
  tensors: Mapping[str, Any]


class Parts:
  """Checks `only`, `adapters` and `merge` of a trainer against its layout. Nothing is communicated.

  Raises InvalidArgumentError for a pattern that matches nothing, and for adapters in the layout of which nothing is
  said; UnsupportedError for adapters that are more than A and B, and for a part of an adapter.

  Attributes: `table`, of the models and adapters that the engine updates; `wanted`, the numbers in it of the tensors to
  update, or None for all; `adapters`, for its invitation; `merge`, the configs.
  """

  def __init__(
    self,
    layout: reshard.Layout,
    only: Iterable[str],
    adapters: Mapping[str, Any] | None,
    merge: Mapping[str, Any] | None,
    draft: Draft | None = None,
  ) -> None:
    names = [t.name for t in layout.model.tensors]
    if adapters is None and merge is None:
      _check_nothing_forgotten(names)
    there = adapters_in(names) if adapters or merge else {}
    self.merge = dict(merge or {})
    given = {name: Adapter(**a) if isinstance(a, Mapping) else a for name, a in (adapters or {}).items()}
    self.adapters = {name: adapter.said() for name, adapter in given.items()}
    _check_adapters(there, self.adapters, self.merge)
    factors = {name for parts in there.values() for name in parts}
    kept = [name for name in names if not (self.merge and name in factors)]
    table = manifest.table_of(layout.model, set(kept))
    self._draft = draft
    if draft is not None:
      if draft.layout.quantised:
        raise reshard.UnsupportedError(f"{draft.layout.name}: the layout of a draft model must be plain")
      table += [[DRAFT + entry[0], *entry[1:]] for entry in manifest.table_of(draft.layout.model)]
    self._only = [only] if isinstance(only, str) else list(only)
    everything = [entry[0] for entry in table]
    wanted = _matching(everything, self._only) if self._only else set(everything)
    drafts = {name for name in everything if name.startswith(DRAFT)}
    self.adapters = {name: said for name, said in self.adapters.items() if wanted & set(there[name])}
    for name in self.adapters:
      _check_whole(wanted, set(there[name]), f"factors of the adapter '{name}'")
      _check_base(name, self.adapters[name]["config"], {part.weight for part in there[name].values()} - wanted)
    # A worker learns from all tensors of a model which of its own layers hold the wanted ones.
    weights = set(everything) - factors - drafts
    updated = wanted.union(*(model for model in (weights, drafts) if model & wanted))
    self.table = [entry for entry in table if entry[0] in updated]
    self.wanted = None
    if wanted != updated:
      self.wanted = [i for i, entry in enumerate(self.table) if entry[0] in wanted]
    self.draft_config = None
    if draft is not None and drafts & wanted:
      self.draft_config = config_of(draft.layout.model)

  def check_taken(self, taken: Iterable[int]) -> None:
    """Raises InvalidArgumentError for a pattern of `only` that matches nothing that a worker takes.

    taken  the numbers in `table` of the tensors that workers receive, whole or in part
    """
    names = {self.table[i][0] for i in taken} if self._only else set()
    for pattern in self._only:
      if not any(map(matches(pattern), names)):
        raise reshard.InvalidArgumentError(f"only: the engine has no tensor that matches '{pattern}'")

  def holds(self, layout: reshard.Layout, rank: int) -> manifest.Manifest:
    """What a rank sends: of its layout, and of its draft model."""
    held = manifest.describe(layout.values, rank, self.table)
    if self._draft is not None:
      bare = [[name.removeprefix(DRAFT) if name.startswith(DRAFT) else ""] for name, *_ in self.table]
      drafts = manifest.describe(self._draft.layout, rank, bare)
      held += [{**entry, "name": DRAFT + entry["name"]} for entry in drafts]
    return held

  def tensors(self, mine: Mapping[str, Any], layout: reshard.Layout, rank: int) -> dict[str, Any]:
    """This rank's tensors in the trainers' layout of all that is sent."""
    drafts = self._draft.tensors if self._draft is not None else {}
    known = {**mine, **{DRAFT + name: tensor for name, tensor in drafts.items()}}
    return {t.name: known[t.name] for t in layout.local(rank)}


class Merging:
  """Merges adapters into what a trainer sends, over a group of the trainer's own. Collective over the trainer.

  Attributes: `tensors`, what to send.
  """

  def __init__(
    self, configs: Mapping[str, Any], layout: reshard.Layout, mine: Mapping[str, Any], said: Invitation, rank: int
  ) -> None:
    self._link: Link | None = None
    group = None
    if said.trainers > 1:
      group = reshard.join(
        said.url,
        rank=rank,
        size=said.trainers,
        secret=said.secret,
        job=f"{said.job}-factors",
        transport=said.transport,
        timeout=said.deadline,
      )
      self._link = Link(group, said.deadline)
    with self._together():
      self._merge = Merge(layout, mine, configs, rank=rank, group=group, timeout=said.deadline)
    self.tensors = self._merge.tensors

  def merge(self, stream: Any) -> None:
    """As Merge.merge()."""
    with self._together():
      self._merge.merge(stream)

  def _together(self) -> contextlib.AbstractContextManager[None]:
    """An error inside becomes an error of every rank of the trainer."""
    return contextlib.nullcontext() if self._link is None else self._link.ends_the_group()

  def close(self) -> None:
    """Leaves the group. Idempotent."""
    self._merge.close()
    if self._link is not None:
      self._link.close()


def _check_nothing_forgotten(names: list[str]) -> None:
  for name in sorted(whole_adapters_in(set(names))):
    raise reshard.InvalidArgumentError(
      f"the layout holds the adapter '{name}': pass adapters= for an engine that loads it, merge= to add it to the weights, "
      "or adapters={} if its factors are tensors of the model itself"
    )


def _check_adapters(there: Mapping[str, Any], adapters: Mapping[str, Any], merge: Mapping[str, Any]) -> None:
  if adapters and merge:
    raise reshard.InvalidArgumentError("adapters= and merge= exclude each other: either the engine adds adapters to the weights, or the trainer")
  said = set(adapters) | set(merge)
  for name in sorted(set(there) - said if said else ()):
    raise reshard.InvalidArgumentError(f"the layout also holds the adapter '{name}', of which nothing is said")
  for name in sorted(said - set(there)):
    raise reshard.InvalidArgumentError(
      f"the adapter '{name}' is not in the layout; its adapters are {listed(sorted(there)) or 'none'}"
    )


def _matching(names: list[str], patterns: list[str]) -> set[str]:
  found: set[str] = set()
  for pattern in patterns:
    test = matches(pattern)
    hits = [name for name in names if test(name)]
    if not hits:
      raise reshard.InvalidArgumentError(f"only: no tensor's name matches '{pattern}'")
    found.update(hits)
  return found


def _check_whole(wanted: set[str], names: set[str], what: str) -> None:
  """Raises UnsupportedError if only some of these are wanted."""
  left = sorted(names - wanted)
  if left and len(left) < len(names):
    raise reshard.UnsupportedError(
      f"only= leaves out some of the {what} ({listed(left)}): an engine takes all of them, or none"
    )


def _check_base(name: str, config: Mapping[str, Any] | None, frozen: set[str]) -> None:
  """Raises UnsupportedError if an engine would add an adapter to other weights than those that it was made for.

  frozen  the weights that the adapter changes and the engine keeps
  """
  if frozen and changes_base(config or {}):
    raise reshard.UnsupportedError(
      f"the initialisation of the adapter '{name}' ({(config or {})['init_lora_weights']}) has changed the weights, and "
      f"only= leaves out {listed(sorted(frozen))}: update the weights, too"
    )


def config_of(model: reshard.Model) -> str:
  """The text of the model's config.json, if it has one."""
  return Path(model.config_path).read_text() if model.config_path else ""
