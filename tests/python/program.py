# SPDX-License-Identifier: Apache-2.0
"""Runs the program under test and reads the folders it writes."""

import json
import os
import pathlib
import subprocess

import pytest

from oracle_tensor import read_tensors

_TIMEOUT_SECONDS = 120


def binary():
  """The program's path; the test fails, never skips, where there is none."""
  path = os.environ.get("RESHARD_BIN")
  if not path:
    pytest.fail(
      "RESHARD_BIN is not set: set it to the path of the reshard program, as `make test` does",
      pytrace=False,
    )
  if not os.access(path, os.X_OK):
    pytest.fail(f"RESHARD_BIN={path} is not a program that can be run", pytrace=False)
  return path


def run(*arguments):
  """Runs the program to its end and returns what subprocess does."""
  command = [binary(), *map(str, arguments)]
  return subprocess.run(
    command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
  )


def convert(source, target, from_layout, to_layout):
  """Converts a checkpoint; a refusal fails the test with the program's own words."""
  done = run("convert", source, target, "--from", from_layout, "--to", to_layout)
  command = f"convert {source} {target} --from {from_layout} --to {to_layout}"
  assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
  return pathlib.Path(target)


class RankFolder:
  """A folder of per-rank files and the reshard.json that names them."""

  def __init__(self, folder):
    self.folder = pathlib.Path(folder)
    self.manifest = json.loads((self.folder / "reshard.json").read_text())
    self.files = {entry["rank"]: entry["file"] for entry in self.manifest["ranks"]}
    self._read = {}

  def rank(self, rank):
    """Everything rank `rank` holds, by name. Ranks that hold the same may share a file."""
    file = self.files[rank]
    if file not in self._read:
      self._read[file] = read_tensors(self.folder / file)
    return self._read[file]
