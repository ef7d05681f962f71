# SPDX-License-Identifier: Apache-2.0
"""Describes this machine, and how much of it other processes used during a measurement."""

import dataclasses
import datetime
import os
import pathlib
import platform
import resource
import subprocess
import time

# Cores that other processes may use before a figure counts as disturbed.
MOST_FOREIGN_CORES = 0.2
# How much the load average may exceed the number of cores, which the benchmark itself may use.
MOST_EXTRA_LOAD = 1.0


def cores():
  return len(os.sched_getaffinity(0))


def available_memory():
  """Bytes that are available without swapping."""
  for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
    if line.startswith("MemAvailable:"):
      return int(line.split()[1]) * 1024
  return 0


def processor():
  for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
    if line.startswith("model name"):
      return line.split(":", 1)[1].strip()
  return platform.machine()


def commit(root):
  """The commit of the sources, marked if tracked files differ from it."""
  git = ["git", "-C", str(root)]
  try:
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True)
  except OSError:
    return "unknown"
  if head.returncode != 0:
    bundled = root / "COMMIT"
    return bundled.read_text().strip() if bundled.exists() else "unknown"
  return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def describe(root):
  """The machine and the moment, for the head of a report."""
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return {
    "date": datetime.date.today().isoformat(),
    "cores": cores(),
    "processor": processor(),
    "memory_gib": round(memory / 2**30, 1),
    "kernel": platform.release(),
    "commit": commit(root),
    "load_average": [round(x, 2) for x in os.getloadavg()],
  }


def busy_seconds(stat_text, ticks_per_second):
  """Core seconds spent not idle since the system started, including stolen time."""
  fields = stat_text.split("\n", 1)[0].split()
  user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in fields[1:9])
  return (user + nice + system + irq + softirq + steal) / ticks_per_second


def own_seconds():
  """Core seconds of this process and of its children that have ended."""
  usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(u.ru_utime + u.ru_stime for u in usages)


@dataclasses.dataclass
class Noise:
  """What other processes did meanwhile."""

  foreign_cores: float = 0.0
  load_average: float = 0.0
  cores: int = 1

  def disturbed(self):
    return (
      self.foreign_cores > MOST_FOREIGN_CORES
      or self.load_average > self.cores + MOST_EXTRA_LOAD
    )


class Watch:
  """Records what other processes do from its construction until `noise`. Children must have ended by then."""

  def __init__(self):
    self.load = os.getloadavg()[0]
    self.begin = self.now()

  @staticmethod
  def now():
    stat = pathlib.Path("/proc/stat").read_text()
    return time.monotonic(), busy_seconds(stat, os.sysconf("SC_CLK_TCK")), own_seconds()

  def noise(self):
    wall, busy, own = (b - a for a, b in zip(self.begin, self.now()))
    foreign = max(0.0, busy - own) / max(wall, 1e-9)
    return Noise(round(foreign, 3), round(self.load, 2), cores())
