# SPDX-License-Identifier: Apache-2.0
"""One line of a report: what was measured, against what, and whether it meets its target."""

import dataclasses
import statistics

from machine import Noise

# Required share of the best plain copy, for runs of at least and of less than LONG_RUN bytes.
LONG_RUN = 4096
LONG_TARGET, SHORT_TARGET = 0.9, 0.75


class BenchError(Exception):
  """A program failed or moved a wrong byte."""


@dataclasses.dataclass
class Row:
  part: str
  what: str
  unit: str = ""
  figure: float | None = None  # median
  best: float | None = None
  against: float | None = None  # in the same unit: the ceiling, or a peer
  against_name: str = ""
  ratio: float | None = None
  target: float | None = None
  target_is_most: bool = False  # else the least
  target_is_ratio: bool = True  # else it is about the figure
  tolerance: float = 0.0
  skipped: str = ""  # why nothing was measured
  note: str = ""
  noise: Noise = dataclasses.field(default_factory=Noise)
  samples: dict = dataclasses.field(default_factory=dict)

  def outcome(self):
    """"met" or "missed". A disturbed run is neither; it only says what it looked like."""
    if self.skipped:
      return "not measured"
    value = self.ratio if self.target_is_ratio else self.figure
    if self.target is None or value is None:
      return ""
    if self.target_is_most:
      met = value <= self.target + self.tolerance
    else:
      met = value >= self.target - self.tolerance
    verdict = "met" if met else "missed"
    return f"noisy ({verdict})" if self.noise.disturbed() else verdict


def from_dict(fields):
  return Row(**{**fields, "noise": Noise(**fields["noise"])})


def rates(seconds, num_bytes):
  """(median, best) in GB/s."""
  return num_bytes / statistics.median(seconds) / 1e9, num_bytes / min(seconds) / 1e9


def fastest(result, ways, num_bytes):
  """(name, GB/s) of the plain way whose median is highest. `result` has "seconds_<way>"."""
  return max(((w, rates(result[f"seconds_{w}"], num_bytes)[0]) for w in ways), key=lambda x: x[1])


def long_share(result):
  """The share of the bytes that are in runs of at least LONG_RUN."""
  pairs = list(zip(result["run_bytes"], result["bytes_in_runs"]))
  return sum(n for run, n in pairs if run >= LONG_RUN) / sum(n for _, n in pairs)


def copy_target(share):
  """The target of a refit with this share of long runs: each kind at its own target's speed."""
  return 1 / (share / LONG_TARGET + (1 - share) / SHORT_TARGET)
