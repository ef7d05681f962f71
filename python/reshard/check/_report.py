# SPDX-License-Identifier: Apache-2.0
"""What a check compared, and what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import reshard

if TYPE_CHECKING:
  from typing_extensions import Self  # of typing from Python 3.11 on

__all__ = ["Difference", "DifferenceError", "Report"]

#: Of what is compared. "native": memory of a library that Python cannot see, read through its own kernel.
KINDS = ("parameter", "buffer", "derived", "native", "number", "alias", "structure")
_SHOWN = 12


class DifferenceError(reshard.Error, RuntimeError):
  """An engine does not hold what a fresh load of the same values holds. `report` says what differs."""

  code = "different"

  def __init__(self, message: str, report: Report | None = None) -> None:
    super().__init__(message)
    self.report = report


@dataclass(frozen=True)
class Difference:
  """One thing that a kernel reads and that is not what a fresh load makes.

  module     the path of the module that has it; "" is the model itself
  attribute  the way from the module to it, such as "weight", "W_UK_T" or "cpu_linear.<handler>"
  kind       one of KINDS
  what       how it differs, in words
  step       which step of the fresh load made it last, such as "load_weights"; "" if that is not known
  rank       of the engine
  """

  module: str
  attribute: str
  kind: str
  what: str
  step: str = ""
  rank: int = 0

  @property
  def path(self) -> str:
    """Module and attribute."""
    return f"{self.module}.{self.attribute}" if self.module else self.attribute

  def __str__(self) -> str:
    made = f", made by {self.step}" if self.step else ""
    return f"rank {self.rank}: {self.kind} '{self.path}'{made}: {self.what}"


@dataclass
class Report:
  """A comparison of an engine with a fresh load, of one rank or of all.

  compared     how many things of each kind
  bytes        of the tensors among them
  differences  in the order of the modules
  unset        what differs, but also between two fresh loads: memory that nothing sets. Not compared
  shared       what the fresh load has in the engine's own memory, so that nothing can be compared: caches of a process
  served       what the engine made while it served and a fresh load does not have, so that nothing can be compared
  ignored      attributes that a rule left out, by the rule, and how many
  ranks        of the engine, which were checked
  """

  compared: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
  bytes: int = 0
  differences: list[Difference] = field(default_factory=list)
  unset: list[str] = field(default_factory=list)
  shared: list[str] = field(default_factory=list)
  served: list[str] = field(default_factory=list)
  ignored: dict[str, int] = field(default_factory=dict)
  ranks: list[int] = field(default_factory=lambda: [0])

  @property
  def equal(self) -> bool:
    """True if nothing differs."""
    return not self.differences

  @property
  def tensors(self) -> int:
    """How many tensors were compared."""
    return sum(self.compared[kind] for kind in ("parameter", "buffer", "derived", "native"))

  def raise_for_difference(self) -> Self:
    """Raises DifferenceError if something differs; else returns the report."""
    if not self.equal:
      raise DifferenceError(str(self), self)
    return self

  @classmethod
  def of(cls, reports: Sequence[Report]) -> Report:
    """One report of those of several ranks."""
    made = cls(ranks=[])
    for one in reports:
      for kind, count in one.compared.items():
        made.compared[kind] += count
      for rule, count in one.ignored.items():
        made.ignored[rule] = made.ignored.get(rule, 0) + count
      made.bytes += one.bytes
      made.differences += one.differences
      made.unset += one.unset
      made.shared += one.shared
      made.served += one.served
      made.ranks += one.ranks
    return made

  def as_dict(self) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(self)

  @classmethod
  def from_dict(cls, said: Mapping[str, Any]) -> Report:
    """Of as_dict(). Errors: InvalidArgumentError for anything else."""
    try:
      differences = [Difference(**one) for one in said["differences"]]
      return cls(**{**said, "differences": differences, "compared": dict.fromkeys(KINDS, 0) | said["compared"]})
    except (KeyError, TypeError, AttributeError) as error:
      raise reshard.InvalidArgumentError(f"no report of a check: {error!r}") from None

  def __str__(self) -> str:
    ranks = f"{len(self.ranks)} rank{'s' * (len(self.ranks) != 1)}"
    head = f"{self.tensors} tensors ({self.bytes} bytes) and {self.compared['number']} numbers of {ranks} compared"
    if self.unset:
      head += f", {len(self.unset)} that nothing sets left out"
    if self.shared:
      head += f", {len(self.shared)} in shared memory not compared"
    if self.served:
      head += f", {len(self.served)} that only a serving engine has not compared"
    if self.equal:
      return f"{head}: equal"
    lines = [f"{head}: {len(self.differences)} differ", *(f"  {one}" for one in self.differences[:_SHOWN])]
    if len(self.differences) > _SHOWN:
      lines.append(f"  and {len(self.differences) - _SHOWN} more")
    return "\n".join(lines)
