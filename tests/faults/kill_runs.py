#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills ranks of real refits with SIGKILL and reports how the others ended.

  tests/faults/kill_runs.py PROGRAM [--runs 200] [--backends shm,ucx,gloo,openmpi,mpich] [--seed 0] [--model CONFIG]

Each run is `reshard run` over processes, sources on ranks 0 and 1, targets on ranks 2 and 3, which quantise
or do not. The seed decides that, and who dies and when: at a named point (before the refit is prepared, as
it starts, half way, as it is checked, as it commits, as it ends, as it is proved) or at any moment. A run is good when everything has ended by the deadline, nothing
says that the destination is right, one line names the rank that died, and no process, no shared memory
and no file is left (but for files that an MPI library leaves in /dev/shm, which are counted). Prints a table; exit code 1 when a run was not good, 77 when
nothing could be tried.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

RANKS, SOURCES = 4, (0, 1)
POINTS = ("prepare", "start", "middle", "check", "commit", "end", "verify")
DEADLINE_SECONDS = 10
# A run that has not ended this long after its deadline hangs.
GRACE_SECONDS = 20
MODEL = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "configs" / "demo-moe.json"
FROM = "megatron:tp=2"
TARGETS = ("vllm:tp=2,offset=2", "vllm:tp=2,offset=2,quant=fp8_channel")
WORK = ["--repeat", "3", "--verify=fingerprints", "--verify", "--json"]
LAUNCHERS = {
  "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
  "mpich": ["mpirun.mpich"],
}
BACKENDS = ("shm", "ucx", "gloo", *LAUNCHERS)


@dataclasses.dataclass
class Outcome:
  """The outcome of a run; `faults` is empty if it was correct."""

  point: str
  victim: int
  seconds: float
  code: int
  named: bool
  launcher_ended_it: bool
  finished_first: bool
  left_by_library: bool
  faults: list


def command(program, backend, model, target):
  work = [program, "run", "--model", str(model), "--from", FROM, "--to", target, *WORK]
  work += ["--deadline", str(DEADLINE_SECONDS)]
  if backend in LAUNCHERS:
    return [*LAUNCHERS[backend], "-n", str(RANKS), *work, "--transport", "mpi"]
  return [*work, "--transport", backend, "--spawn"]


def missing(program, backend):
  """Empty, or why this backend cannot be tried."""
  if backend in LAUNCHERS and shutil.which(LAUNCHERS[backend][0]) is None:
    return f"there is no {LAUNCHERS[backend][0]}"
  name = "mpi" if backend in LAUNCHERS else backend
  listed = subprocess.run([program, "transports", "--json"], capture_output=True, text=True, check=True)
  row = next(t for t in json.loads(listed.stdout)["transports"] if t["name"] == name)
  return "" if row["available"] else row["reason"]


def tagged(tag):
  """{process id: environment} of the processes with this tag in their environment."""
  found = {}
  for entry in pathlib.Path("/proc").iterdir():
    if not entry.name.isdigit():
      continue
    try:
      environment = (entry / "environ").read_bytes()
      state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
      continue
    if f"RESHARD_FAULT_RUN={tag}".encode() in environment and state != "Z":
      found[int(entry.name)] = environment
  return found


def rank_of(environment):
  for name in (b"RESHARD_SPAWNED=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="):
    for field in environment.split(b"\0"):
      if field.startswith(name):
        return int(field[len(name) :].split(b"/")[0])
  return None


def kill_at_a_moment(tag, victim, moment, over):
  """SIGKILLs the victim's process after `moment` seconds, if it lives then."""
  if over.wait(moment):
    return
  for pid, environment in tagged(tag).items():
    if rank_of(environment) == victim:
      try:
        os.kill(pid, signal.SIGKILL)
      except ProcessLookupError:
        pass


def wait_until_gone(tag):
  """Processes that are still there; the last ones may need a moment to leave the table."""
  end = time.monotonic() + 5
  while (left := tagged(tag)) and time.monotonic() < end:
    time.sleep(0.05)
  return left


def left_in_shared_memory(before):
  """Files in /dev/shm that are new and that no living process has mapped: others may use it too (sem.mp-: Python's
  multiprocessing)."""
  extra = {name for name in set(os.listdir("/dev/shm")) - before if not name.startswith("sem.mp-")}
  for maps in pathlib.Path("/proc").glob("[0-9]*/maps") if extra else ():
    try:
      text = maps.read_text()
    except OSError:
      continue
    extra -= {name for name in extra if f"/dev/shm/{name}" in text}
  return {name for name in extra if os.path.exists(f"/dev/shm/{name}")}


def one_run(argv, backend, point, victim, moment):
  tag = f"{os.getpid()}-{random.SystemRandom().getrandbits(48):x}"
  shared = set(os.listdir("/dev/shm"))
  with tempfile.TemporaryDirectory(prefix="reshard-faults-") as folder:
    env = {**os.environ, "RESHARD_FAULT_RUN": tag, "TMPDIR": folder}
    if point in POINTS:
      env["RESHARD_TEST_KILL"] = f"rank={victim},at={point}"
    begin = time.monotonic()
    process = subprocess.Popen(
      argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    over = threading.Event()
    killer = threading.Thread(target=kill_at_a_moment, args=(tag, victim, moment, over))
    if point not in POINTS:
      killer.start()
    faults = []
    try:
      out, err = process.communicate(timeout=DEADLINE_SECONDS + GRACE_SECONDS)
    except subprocess.TimeoutExpired:
      faults.append("hangs")
      for pid in tagged(tag):
        os.kill(pid, signal.SIGKILL)
      out, err = process.communicate()
    seconds = time.monotonic() - begin
    over.set()
    if killer.is_alive():
      killer.join()
    for pid in (left := wait_until_gone(tag)):
      os.kill(pid, signal.SIGKILL)
    if left:
      faults.append(f"{len(left)} processes are left")
    files = [] if backend in LAUNCHERS else os.listdir(folder)
  if files:
    faults.append(f"left in the temporary folder: {files}")
  extra = left_in_shared_memory(shared)
  by_library = bool(extra) and backend in LAUNCHERS
  if extra and not by_library:
    faults.append(f"left in /dev/shm: {sorted(extra)}")
  return judge(backend, point, victim, seconds, process.returncode, out, err, by_library, faults)


def judge(backend, point, victim, seconds, code, out, err, by_library, faults):
  proved = '"verified": true' in out
  lines = [line for line in err.splitlines() if line.startswith("reshard: ")]
  named = any(f"rank {victim}" in line for line in lines)
  by_launcher = backend in LAUNCHERS and not named
  # Proved on every rank, then killed on its way out: only a launcher still minds.
  finished_first = point not in POINTS and proved and (code == 0 or backend in LAUNCHERS)
  if not finished_first:
    if code == 0:
      faults.append("exit code 0")
    if proved:
      faults.append("the destination was called right")
    if len(lines) > 1:
      faults.append(f"{len(lines)} lines of complaint: {lines}")
    if not named and not by_launcher:
      faults.append(f"no line names rank {victim}: {err.strip()[-300:]}")
  return Outcome(
    point, victim, seconds, code, named, by_launcher, finished_first, by_library, faults
  )


def clean_seconds(argv):
  """Of an undisturbed run, which must succeed."""
  begin = time.monotonic()
  done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
  if done.returncode != 0 or '"verified": true' not in done.stdout:
    sys.exit(f"kill_runs: an undisturbed run failed: {' '.join(argv)}\n{done.stderr}")
  return time.monotonic() - begin


def runs_of(program, backend, model, count, seed):
  jobs = [command(program, backend, model, target) for target in TARGETS]
  whole = [max(clean_seconds(argv) for _ in range(2)) for argv in jobs]
  for i in range(count):
    rng = random.Random(f"{seed}/{backend}/{i}")
    point = rng.choice([*POINTS, "any moment"])
    job = rng.randrange(len(jobs))
    moment = rng.uniform(0, whole[job])
    outcome = one_run(jobs[job], backend, point, rng.randrange(RANKS), moment)
    yield i, outcome


def table_row(backend, outcomes):
  sources = sum(o.victim in SOURCES for o in outcomes)
  longest = max(o.seconds for o in outcomes)
  named = sum(o.named for o in outcomes)
  launcher = sum(o.launcher_ended_it and not o.finished_first for o in outcomes)
  finished = sum(o.finished_first for o in outcomes)
  files = sum(o.left_by_library for o in outcomes)
  bad = sum(bool(o.faults) for o in outcomes)
  cells = (backend, len(outcomes), f"{sources} / {len(outcomes) - sources}", named, launcher, finished, files)
  return "| " + " | ".join(map(str, cells)) + f" | {longest:.1f} s | {bad} |"


def main(arguments):
  parser = argparse.ArgumentParser(prog="kill_runs.py", description=__doc__.split("\n")[0])
  parser.add_argument("program")
  parser.add_argument("--runs", type=int, default=200)
  parser.add_argument("--backends", default=",".join(BACKENDS))
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--model", type=pathlib.Path, default=MODEL)
  chosen = parser.parse_args(arguments)
  rows, bad = [], 0
  for backend in chosen.backends.split(","):
    if why := missing(chosen.program, backend):
      print(f"skipped {backend}: {why}", flush=True)
      continue
    outcomes = []
    for i, outcome in runs_of(chosen.program, backend, chosen.model, chosen.runs, chosen.seed):
      outcomes.append(outcome)
      for fault in outcome.faults:
        bad += 1
        print(f"{backend} run {i}, rank {outcome.victim} killed at {outcome.point}: {fault}", flush=True)
    rows.append(table_row(backend, outcomes))
  if not rows:
    return 77
  print("| backend | runs | sources / targets killed | named by a survivor | ended by the launcher "
        "| done before the kill | files of MPI left | longest | not good |")
  print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
  print("\n".join(rows))
  return 1 if bad else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
