# SPDX-License-Identifier: Apache-2.0
"""Which tensor of the source each of the target gets, where tensors have several names.

A tied tensor has several names: the embedding and the head of a module, or of its state dict. A
source gives a tied tensor by any of its names. A target has it once; it gets the source's tensor of
one of its names, and it is an error if these are different tensors there, for one memory cannot hold
both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from reshard._errors import InvalidArgumentError, NotFoundError
from reshard._names import listed
from reshard.live._ranks import Ranks, unpacked

HINT = "rename it with names=, or name it in ignore="


class Names:
  """The names of a side's tensors, on all ranks; those that are tied are one tensor.

  tied  of each rank: {name: other names}
  """

  def __init__(self, tied: Iterable[Mapping[str, Sequence[str]]]) -> None:
    self._classes: dict[str, set[str]] = {}
    for of_rank in tied:
      for name, others in of_rank.items():
        merged = set().union(*(self.of(n) for n in (name, *others)))
        for member in merged:
          self._classes[member] = merged

  def of(self, name: str) -> set[str]:
    """All names of the tensor that has this one."""
    return self._classes.get(name, {name})

  def distinct(self, names: Iterable[str]) -> list[str]:
    """One name of each tensor that has any of these."""
    found: list[str] = []
    for name in names:
      if not any(name in self.of(other) for other in found):
        found.append(name)
    return found


class Pairing:
  """What all ranks have of both sides, with the target's tensors under the names of the source.

  said      of each rank: of the source and of the target, {"held": [...], "tied": {...}}
  may_lack  whether one side may lack a name
  also      names that source and target have besides what was said, by a layout
  second    names of tensors that are called otherwise: {"lm_head.weight": "model.embed_tokens.weight"}

  Raises InvalidArgumentError for a tied tensor of the target that would get two of the source's.
  """

  def __init__(
    self,
    said: Sequence[Any],
    may_lack: Callable[[str], bool],
    also: tuple[Iterable[str], Iterable[str]] = ((), ()),
    second: Mapping[str, str] | None = None,
  ) -> None:
    self.source, self.target = (unpacked([answer[k]["held"] or None for answer in said], 0) for k in (0, 1))
    self._source_names, self._target_names = (Names(answer[k]["tied"] for answer in said) for k in (0, 1))
    self._may_lack = may_lack
    self._second = second or {}
    self.have = _names(self.source) | set(also[0])
    self.used = set(also[1])
    for rank, here in self.target.items():
      self.target[rank] = [dataclasses.replace(held, whole=self._chosen(held.whole)) for held in here]

  def _chosen(self, name: str) -> str:
    """The source's name of what the target's tensor of this name gets."""
    names = [name, *sorted(self._target_names.of(name) - {name})]
    known = [n for n in names if n in self.have]
    wanted = [n for n in known if not self._may_lack(n)]
    different = self._source_names.distinct(wanted)
    if len(different) > 1:
      raise InvalidArgumentError(
        f"Refit: {_and(different)} are one tied tensor of the target, but different ones of the "
        "source; name all but one in ignore="
      )
    for candidate in (*wanted, *known, *(self._second.get(n) for n in names)):
      if candidate in self.have:
        self.used.add(candidate)
        return candidate
    self.used.add(name)
    return name

  def is_used(self, name: str) -> bool:
    """Whether a tensor of the target gets the source's of this name."""
    return not self._source_names.of(name).isdisjoint(self.used)

  def is_tied(self, name: str) -> bool:
    """Whether this is another name of a tensor of the target."""
    return len(self._target_names.of(name)) > 1

  def split(self, main: Sequence[Callable[[str], bool]]) -> list[list[Ranks]]:
    """[source, target] of the tensors for which a side's `main` is true, and of the others."""
    found: list[list[Ranks]] = [[], []]
    for side, keep in zip((self.source, self.target), main, strict=True):
      names = _names(side)
      kept = {name for name in names if keep(name)}
      found[0].append(_where(side, kept))
      found[1].append(_where(side, names - kept))
    return found

  def match(self, source: Ranks, target: Ranks, selects: Callable[[str], bool]) -> tuple[Ranks, Ranks]:
    """What both sides have and `selects` is true for. Raises NotFoundError for what only one has."""
    have, want = _names(source), _names(target)
    missing("source", sorted(n for n in want - have if not self._may_lack(n)))
    missing("target", sorted(n for n in have - want if not self.is_used(n) and not self._may_lack(n)))
    both = {name for name in have & want if selects(name)}
    return _where(source, both), _where(target, both)


def missing(side: str, names: Sequence[str]) -> None:
  """Raises NotFoundError if there are names that one side lacks."""
  if names:
    other = "target" if side == "source" else "source"
    raise NotFoundError(f"Refit: the {side} has no counterpart of the {other}'s {listed(names)}; {HINT}")


def _names(side: Ranks) -> set[str]:
  return {held.whole for here in side.values() for held in here}


def _where(side: Ranks, names: set[str]) -> Ranks:
  found = {rank: [held for held in here if held.whole in names] for rank, here in side.items()}
  return {rank: here for rank, here in found.items() if here}


def _and(names: Sequence[str]) -> str:
  return ", ".join(f"'{n}'" for n in names[:-1]) + f" and '{names[-1]}'"
