#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random fleets in which processes are killed, stopped, slowed down and started, and checks every byte.

  tests/faults/fleet_runs.py [--runs 1000] [--seed 0] [--transport shm] [--log FILE]

Each run is a trainer of one or two processes and two or three engines of one or two, which take four
versions. The seed decides the layouts, one copy of each target or two, and the faults: who is killed, stopped or
slowed down, in which phase of which of its refits or at any moment, and who comes again or anew before which
version. A process that is slow waits in a phase. A run is good if

  - every version that an engine is told to have is right, byte for byte, on all of its ranks
  - every call of the trainer ends in time: its deadline, two seconds, and the server's wait for reports
  - at the end, every engine whose processes are alive has the last version

Prints what was not good, with the seed, and a table; exit code 1 if a run was not good.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import random
import secrets
import signal
import sys
import tempfile
import time

TESTS = str(pathlib.Path(__file__).resolve().parent.parent.parent / "python" / "tests")
sys.path.insert(0, TESTS)

import fleet_process  # noqa: E402

from reshard.fleet import serve  # noqa: E402

PHASES = ("begin", "transfer", "check", "commit", "committed")
VERSIONS = 4
TIMEOUT = 6.0  # seconds of each step of a refit.
REPORT = 3.0  # seconds that the server waits for the last reports of a round.
# A round ends at the latest after its group was made (TIMEOUT), prepared and refit (TIMEOUT, and 2 s), and reported;
# one that nobody is lost in is tried again. Then the machine may be busy.
MOST = 2 * (3 * TIMEOUT + 2 + REPORT) + 30


class Wrong(Exception):
  """A run that is not good."""


class Run:
  """One fleet, as its seed says."""

  def __init__(self, seed, transport, folder):
    self.rng = random.Random(seed)
    self.folder, self.transport = folder, transport
    self.doubled = self.rng.random() < 0.5
    self.secret = secrets.token_hex(16)
    self.context = multiprocessing.get_context("forkserver")
    self.server = serve("tcp://127.0.0.1:0", secret=self.secret, timeout=TIMEOUT, report=REPORT)
    self.sizes, self.layouts, self.processes, self.stopped = {}, {}, {}, set()
    self.told = {}  # (unit, rank) -> the last version that it was told to have
    self.kills = self.stops = self.slow = self.starts = 0
    self.longest = 0.0  # call of refit(), in seconds
    self.left = 3  # processes that die or stop in a phase.
    self.planned = {}  # (unit, rank) -> what happens to it in a phase
    self.to_do = []  # (moment, unit, rank, what)

  def start(self, unit, rank):
    mine, theirs = self.context.Pipe()
    role = "trainer" if unit == "trainer" else "engine"
    place = {"unit": unit, "role": role, "layout": self.layouts[unit], "rank": rank, "size": self.sizes[unit]}
    process = self.context.Process(
      target=fleet_process.serve_pipe,
      args=(theirs, place, self.server.url, self.secret, self.doubled, self.transport, TIMEOUT),
      daemon=True,
    )
    process.start()
    theirs.close()
    if (unit, rank) in self.processes:
      before = self.processes[unit, rank][0]
      before.join(10)
      self.kills += before.exitcode == -signal.SIGKILL
    self.processes[unit, rank] = process, mine
    self.told.pop((unit, rank), None)

  def joined(self, unit, rank):
    """Waits until it has joined, and says what will happen to it."""
    _, pipe = self.processes[unit, rank]
    if not pipe.poll(MOST):
      raise Wrong(f"{unit} {rank} does not join")
    faults = self.faults(unit)
    self.planned[unit, rank] = set(faults.values())
    self.slow += sum(isinstance(act, float) for act in faults.values())
    try:
      said = pipe.recv()
      if said != "joined":
        raise Wrong(f"{unit} {rank}: {said}")
      pipe.send(("faults", faults) if unit == "trainer" else ("follow", faults))
    except (EOFError, BrokenPipeError, ConnectionResetError):
      pass  # It was killed meanwhile.

  def faults(self, unit):
    """What happens to a process: {(number of its refit, phase): what}. Only so many die or stop of themselves."""
    if self.rng.random() < 0.6 or self.left == 0:
      return {}
    kinds = ("die", "die", "slow") if unit == "trainer" else ("die", "die", "stop", "slow", "slow")
    kind = self.rng.choice(kinds)
    self.left -= kind != "slow"
    act = self.rng.uniform(0.05, 0.4) if kind == "slow" else kind
    return {(self.rng.randint(1, VERSIONS), self.rng.choice(PHASES)): act}

  def start_units(self, units):
    """Starts the processes of these units that are not alive."""
    fresh = []
    for unit in units:
      if unit not in self.sizes:
        self.sizes[unit] = self.rng.choice((1, 2))
        self.layouts[unit] = fleet_process.layout_file(
          self.folder, unit, self.sizes[unit], self.rng.random() < 0.5
        )
      fresh += [(unit, rank) for rank in range(self.sizes[unit]) if not self.alive(unit, rank)]
    for unit, rank in fresh:
      if (unit, rank) in self.stopped:
        self.processes[unit, rank][0].kill()
        self.kills -= 1  # That was no fault.
        self.stopped.remove((unit, rank))
      self.start(unit, rank)
    for unit, rank in fresh:
      self.joined(unit, rank)
    self.starts += len(fresh)

  def alive(self, unit, rank):
    found = self.processes.get((unit, rank))
    return found is not None and found[0].is_alive() and (unit, rank) not in self.stopped

  def whole(self, unit):
    return all(self.alive(unit, rank) for rank in range(self.sizes[unit]))

  def break_something(self):
    """Chooses who is killed, or stands still for a while, at any moment of the next refit."""
    if self.rng.random() < 0.6:
      return
    unit, rank = self.rng.choice(sorted(self.processes))
    kind = self.rng.choice(("die", "pause"))
    self.to_do.append((time.monotonic() + self.rng.uniform(0, 0.4), unit, rank, kind))

  def strike(self):
    """Does what is due."""
    now = time.monotonic()
    for due in [x for x in self.to_do if x[0] <= now]:
      self.to_do.remove(due)
      _, unit, rank, kind = due
      process, _ = self.processes[unit, rank]
      if not process.is_alive() or (unit, rank) in self.stopped:
        continue
      signals = {"die": signal.SIGKILL, "pause": signal.SIGSTOP, "go on": signal.SIGCONT}
      os.kill(process.pid, signals[kind])
      self.slow += kind == "pause"
      if kind == "pause":
        self.to_do.append((now + self.rng.uniform(0.05, 0.4), unit, rank, "go on"))

  def listen(self, until, seconds, what):
    """Takes what processes say until `until()`."""
    end = time.monotonic() + seconds
    while not until():
      self.strike()
      left = end - time.monotonic()
      if left < 0:
        raise Wrong(f"{what} has not ended after {seconds:.0f} s:\n{self.server.text()}")
      pipes = {p: at for at, (_, p) in self.processes.items() if not p.closed}
      for pipe in multiprocessing.connection.wait(list(pipes), timeout=min(left, 0.02)):
        try:
          self.heard(*pipes[pipe], pipe.recv())
        except (EOFError, ConnectionResetError):
          pipe.close()

  def heard(self, unit, rank, said):
    if isinstance(said, str) and said.startswith("in "):  # In a phase, where it dies or stops.
      if "stop" in self.planned[unit, rank]:
        self.stopped.add((unit, rank))
        self.stops += 1
    elif unit == "trainer":
      self.reports[rank] = said
    elif isinstance(said, int):
      self.told[unit, rank] = said
    else:
      raise Wrong(f"{unit} {rank}: {said}")

  def publish(self, version):
    """The trainer refits, and comes again as often as it dies."""
    while True:
      self.start_units(["trainer"])
      self.reports = {}
      for rank in range(self.sizes["trainer"]):
        try:
          self.processes["trainer", rank][1].send(("refit", version))
        except BrokenPipeError:
          pass  # It has died; the others are told.
      ranks = range(self.sizes["trainer"])
      begin = time.monotonic()
      self.listen(lambda: all(r in self.reports or not self.alive("trainer", r) for r in ranks), MOST, "a refit")
      self.longest = max(self.longest, time.monotonic() - begin)
      said = [self.reports.get(r) for r in ranks]
      if all(s is not None and s[0] == version for s in said):
        return said[0]
      for s in said:
        if s is not None and s[0] not in (version, "AbortedError", "DeadlineError"):
          raise Wrong(f"the trainer: {s}")

  def run(self):
    engines = [f"e{i}" for i in range(self.rng.choice((2, 3)))]
    self.start_units(["trainer", *engines])
    for version in range(1, VERSIONS + 1):
      if version > 1 and self.rng.random() < 0.3:
        engines.append(f"e{len(engines)}")
        self.start_units([engines[-1]])
      for unit in engines:
        if not self.whole(unit) and self.rng.random() < 0.4:
          self.start_units([unit])
      self.break_something()
      self.publish(version)
    self.listen(lambda: not self.to_do, 10, "the last fault")
    # The trainer is dead or silent: those that are alive and behind have their peers.
    holders = [u for u in engines if self.whole(u) and self.has(u, VERSIONS)]
    if not holders and any(self.whole(u) for u in engines):
      self.publish(VERSIONS)
    self.listen(lambda: all(not self.whole(u) or self.has(u, VERSIONS) for u in engines), MOST, "catching up")

  def has(self, unit, version):
    return all(self.told.get((unit, r)) == version for r in range(self.sizes[unit]))

  def end(self):
    for process, _ in self.processes.values():
      self.kills += process.exitcode == -signal.SIGKILL
      process.kill()
    for process, pipe in self.processes.values():
      process.join(10)
      pipe.close()
    self.server.close()


def one_run(seed, transport):
  """{what happened} of one run; "fault" is "" if it was good."""
  begin = time.monotonic()
  with tempfile.TemporaryDirectory(prefix="reshard-fleet-") as folder:
    run = Run(seed, transport, folder)
    fault = ""
    try:
      run.run()
    except Wrong as error:
      fault = str(error)
    finally:
      run.end()
  return {
    "seed": seed,
    "fault": fault,
    "seconds": round(time.monotonic() - begin, 2),
    "doubled": run.doubled,
    "processes": run.starts,
    "killed": run.kills,
    "stopped": run.stops,
    "refit": round(run.longest, 2),
    "slow": run.slow,
  }


def main(arguments):
  parser = argparse.ArgumentParser(prog="fleet_runs.py", description=__doc__.split("\n")[0])
  parser.add_argument("--runs", type=int, default=1000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--transport", default="shm")
  parser.add_argument("--log", type=pathlib.Path, help="a file to which each run is written as a line of JSON")
  chosen = parser.parse_args(arguments)
  # Processes are forked from one that has the package.
  os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
  multiprocessing.set_forkserver_preload(["fleet_process"])
  rows = []
  for seed in range(chosen.seed, chosen.seed + chosen.runs):
    rows.append(one_run(seed, chosen.transport))
    if chosen.log:
      with chosen.log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(rows[-1]) + "\n")
    if rows[-1]["fault"]:
      print(f"seed {seed}: {rows[-1]['fault']}", flush=True)
  print("| runs | processes | killed | stopped | slow | longest refit() if none stopped | if some did | not good |")
  print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
  sums = [sum(row[key] for row in rows) for key in ("processes", "killed", "stopped", "slow")]
  bad = sum(bool(row["fault"]) for row in rows)
  longest = [max((row["refit"] for row in rows if bool(row["stopped"]) == some), default=0) for some in (False, True)]
  cells = (len(rows), *sums, *(f"{seconds:.1f} s" for seconds in longest), bad)
  print("| " + " | ".join(map(str, cells)) + " |")
  return 1 if bad else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
