# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark programs and reads their output."""

import json
import os
import subprocess
import tempfile
import time

from rows import BenchError


class Programs:
  """The programs of a build folder, and the config files of the sources."""

  def __init__(self, build, root):
    self.bin = build / "bin"
    self.configs = root / "examples" / "configs"

  def path(self, name):
    return str(self.bin / name)

  def has(self, name):
    return os.access(self.bin / name, os.X_OK)

  def config(self, model):
    return str(self.configs / f"{model}.json")


def arguments(**pairs):
  """["--key", "value", ...] of the pairs that are not None."""
  flat = [[f"--{key}", str(value)] for key, value in pairs.items() if value is not None]
  return [x for pair in flat for x in pair]


def parse_lines(text):
  """The JSON objects of a text that has one per line."""
  return [json.loads(line) for line in text.splitlines() if line.strip()]


def run(argv):
  """The standard output of a program that must succeed."""
  done = subprocess.run(argv, capture_output=True, text=True)
  if done.returncode != 0:
    raise BenchError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
  return done.stdout


def run_lines(argv):
  """The JSON objects that a program prints, one per line."""
  return parse_lines(run(argv))


def run_measured(argv):
  """(seconds, peak resident bytes, standard output) of a program that must succeed."""
  with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
    begin = time.monotonic()
    process = subprocess.Popen(argv, stdout=out, stderr=err)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    out.seek(0)
    err.seek(0)
    if process.returncode != 0:
      raise BenchError(f"{' '.join(argv)}: {err.read().decode(errors='replace').strip()}")
    return seconds, usage.ru_maxrss * 1024, out.read().decode()


def expect(process, word):
  line = process.stdout.readline().strip()
  if line != word:
    raise BenchError(f"{' '.join(process.args)}: printed '{line}', not '{word}'")


def alternate(argvs, rounds):
  """Lets programs that wait for a line before each round alternate. Returns their JSON objects."""
  processes = []
  try:
    for argv in argvs:
      pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
      processes.append(subprocess.Popen(argv, **pipes))
      expect(processes[-1], "ready")
    for _ in range(rounds):
      for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
        expect(process, "done")
    results = [parse_lines(process.communicate()[0]) for process in processes]
    for process in processes:
      if process.returncode != 0:
        raise BenchError(f"{' '.join(process.args)}: exit code {process.returncode}")
    return results
  finally:
    for process in processes:
      if process.poll() is None:
        process.kill()
        process.wait()
