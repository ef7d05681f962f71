# SPDX-License-Identifier: Apache-2.0
"""Who sends how much to whom, in few enough rows and columns to be looked at."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, cast

import reshard


@dataclasses.dataclass(frozen=True)
class Groups:
  """The ranks of one side in groups of neighbours, all of `size` ranks but the last."""

  ranks: Sequence[int]
  size: int

  @classmethod
  def of(cls, ranks: Sequence[int], most: int, host: int) -> "Groups":
    """At most `most` groups: of single ranks, of ranks of one host, or of whole hosts."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < host and host % size == 0] + [host]
    while sizes[-1] * most < len(ranks):
      sizes.append(2 * sizes[-1])
    return cls(ranks, next(size for size in sizes if size * most >= len(ranks)))

  def __len__(self) -> int:
    return -(-len(self.ranks) // self.size)

  def members(self, group: int) -> Sequence[int]:
    return self.ranks[group * self.size : (group + 1) * self.size]

  def label(self, group: int) -> str:
    """"12" or "8-15"."""
    ranks = self.members(group)
    return f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


class Traffic(NamedTuple):
  """The bytes from each group of senders (rows) to each group of receivers (columns)."""

  sources: Groups
  targets: Groups
  bytes: list[list[int]]

  @property
  def most(self) -> int:
    return max((max(row) for row in self.bytes), default=0)


def traffic_of(plan: reshard.Plan, most: int, host: int) -> Traffic:
  """The traffic of a plan in at most `most` rows and `most` columns; `host` ranks are on a host."""
  sources = Groups.of(plan.source.ranks, most, host)
  targets = Groups.of(plan.target.ranks, most, host)
  rows = cast(list[list[int]], plan.traffic.tolist())  # of two dimensions
  columns = [targets.members(t) for t in range(len(targets))]
  cells = [
    [sum(rows[rank][t] for rank in sources.members(s) for t in column) for column in columns]
    for s in range(len(sources))
  ]
  return Traffic(sources, targets, cells)
