#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stops ranks of real refits with SIGSTOP and checks that everything ends nevertheless.

  tests/faults/stop_runs.py PROGRAM [--runs 100] [--backends shm,ucx,gloo] [--seed 0] [--at-once 4]

Each run is `reshard run --spawn`, as one program or as two that meet. The seed decides that, which ranks stand
still (often all of a program) and from which moment on. A run is good when every program has ended soon after its
deadline, with one line that names a rank which stood still, and no process and no file is left. Several runs wait
for their deadlines at once; shared memory is looked at when all of them have ended. Prints a table; exit code 1 when
a run was not good, 77 when nothing could be tried.
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import kill_runs

RANKS = 4
DEADLINE_SECONDS = 5
GRACE_SECONDS = 25
BACKENDS = ("shm", "ucx", "gloo")
FROM, TARGETS = kill_runs.FROM, kill_runs.TARGETS


def commands(program, backend, target, parts, folder):
  """One command, or two whose programs meet in the folder; with the first rank of each."""
  work = [program, "run", "--model", str(kill_runs.MODEL), "--from", FROM, "--to", target]
  work += ["--repeat", "20", "--verify", "--json", "--deadline", str(DEADLINE_SECONDS)]
  work += ["--transport", backend, "--spawn"]
  if parts == 1:
    return [(0, work)]
  meet = ["--rendezvous", f"file://{folder}"]
  return [(0, [*work, *meet, "--ranks", "0-1"]), (2, [*work, *meet, "--ranks", "2-3"])]


def stop(tag, firsts, wanted):
  """Stops these ranks; those that were still there."""
  stopped = set()
  for pid, environment in kill_runs.tagged(tag).items():
    index = kill_runs.rank_of(environment)
    first = next((f for f in firsts if f"RESHARD_FAULT_FIRST={f}".encode() in environment), None)
    if index is None or first is None or first + index not in wanted:
      continue
    try:
      os.kill(pid, signal.SIGSTOP)
      stopped.add(first + index)
    except ProcessLookupError:
      pass
  return stopped


def started(tag, count):
  """Whether so many ranks have begun; waits for them, unless some have ended before."""
  end = time.monotonic() + DEADLINE_SECONDS
  while time.monotonic() < end:
    if sum(kill_runs.rank_of(e) is not None for e in kill_runs.tagged(tag).values()) == count:
      return True
    time.sleep(0.002)
  return False


def one_run(program, backend, target, parts, wanted, moment):
  """(ranks that were stopped, seconds, faults)"""
  tag = f"{os.getpid()}-{random.SystemRandom().getrandbits(48):x}"
  faults = []
  with tempfile.TemporaryDirectory(prefix="reshard-faults-") as folder:
    meet, temporary = pathlib.Path(folder) / "meet", pathlib.Path(folder) / "tmp"
    meet.mkdir()
    temporary.mkdir()
    runs = []
    begin = time.monotonic()
    for first, argv in commands(program, backend, target, parts, meet):
      env = {**os.environ, "RESHARD_FAULT_RUN": tag, "TMPDIR": str(temporary)}
      env["RESHARD_FAULT_FIRST"] = str(first)
      runs.append((first, subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)))
    if not started(tag, RANKS):
      faults.append("the ranks did not start")
    time.sleep(moment)
    stopped = stop(tag, [first for first, _ in runs], wanted)
    for first, run in runs:
      faults += ended(tag, first, run, RANKS // parts, stopped)
    seconds = time.monotonic() - begin
    for pid in (left := kill_runs.wait_until_gone(tag)):
      os.kill(pid, signal.SIGKILL)
    if left:
      faults.append(f"{len(left)} processes are left")
    if files := [*meet.iterdir(), *temporary.iterdir()]:
      faults.append(f"files are left: {[f.name for f in files]}")
  return stopped, seconds, faults


def ended(tag, first, run, count, stopped):
  """What is wrong with how one of the programs ended."""
  try:
    out, err = run.communicate(timeout=DEADLINE_SECONDS + GRACE_SECONDS)
  except subprocess.TimeoutExpired:
    for pid in kill_runs.tagged(tag):
      os.kill(pid, signal.SIGKILL)
    run.communicate()
    return [f"the program of rank {first} hangs"]
  lines = [line for line in err.splitlines() if line.startswith("reshard: ")]
  if run.returncode == 0:
    # All of its ranks were done before.
    own = stopped & set(range(first, first + count))
    return [f"exit code 0, though {sorted(own)} stood still"] if own else []
  if len(lines) != 1:
    return [f"{len(lines)} lines of complaint: {lines}"]
  named = {int(n) for text in re.findall(r"ranks? (\d+(?:, \d+)*)", lines[0]) for n in text.split(", ")}
  faults = [] if named & stopped else [f"no rank of {sorted(stopped)} is named: {lines[0]}"]
  if set(range(first, first + count)) <= stopped and "stood still" not in lines[0]:
    faults.append(f"not said that all of its ranks stood still: {lines[0]}")
  return faults


def wanted_ranks(rng, parts):
  """Half of the time all ranks of a program, else any."""
  if rng.random() < 0.5:
    return set(range(RANKS)) if parts == 1 else set(rng.choice([(0, 1), (2, 3)]))
  return set(rng.sample(range(RANKS), rng.randint(1, RANKS)))


def seeded_run(program, backend, seed, number):
  """(the run in words, ranks that were stopped, seconds, faults)"""
  rng = random.Random(f"{seed}/{backend}/{number}")
  parts = rng.choice((1, 2))
  wanted = wanted_ranks(rng, parts)
  stopped, seconds, faults = one_run(program, backend, rng.choice(TARGETS), parts, wanted, rng.uniform(0, 0.5))
  return f"run {number}, {parts} programs, ranks {sorted(stopped)} stopped", stopped, seconds, faults


def outcomes(program, backend, seed, runs, at_once):
  """The outcome of each run, and one more where shared memory is left behind."""
  with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
    for first in range(0, runs, at_once):
      shared = set(os.listdir("/dev/shm"))
      numbers = range(first, min(first + at_once, runs))
      yield from pool.map(lambda i: seeded_run(program, backend, seed, i), numbers)
      if extra := kill_runs.left_in_shared_memory(shared):
        yield f"runs {first} to {numbers[-1]}", set(), 0.0, [f"left in /dev/shm: {sorted(extra)}"]


def main(arguments):
  parser = argparse.ArgumentParser(prog="stop_runs.py", description=__doc__.split("\n")[0])
  parser.add_argument("program")
  parser.add_argument("--runs", type=int, default=100)
  parser.add_argument("--backends", default=",".join(BACKENDS))
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--at-once", type=int, default=4)
  chosen = parser.parse_args(arguments)
  rows, bad = [], 0
  for backend in chosen.backends.split(","):
    if why := kill_runs.missing(chosen.program, backend):
      print(f"skipped {backend}: {why}", flush=True)
      continue
    longest, all_of_one, not_good = 0.0, 0, 0
    done = outcomes(chosen.program, backend, chosen.seed, chosen.runs, chosen.at_once)
    for run, stopped, seconds, faults in done:
      longest = max(longest, seconds)
      all_of_one += {0, 1} <= stopped or {2, 3} <= stopped
      not_good += bool(faults)
      for fault in faults:
        print(f"{backend} {run}: {fault}", flush=True)
    bad += not_good
    rows.append(f"| {backend} | {chosen.runs} | {all_of_one} | {longest:.1f} s | {not_good} |")
  if not rows:
    return 77
  print("| backend | runs | all ranks of a program stopped | longest | not good |")
  print("| --- | ---: | ---: | ---: | ---: |")
  print("\n".join(rows))
  return 1 if bad else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
