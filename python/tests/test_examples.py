# SPDX-License-Identifier: Apache-2.0
"""Law: the examples of refits run as they are written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import TIMEOUT, free_url

EXAMPLES = Path(__file__).parents[2] / "examples/python"


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("refit_in_process.py", "every tensor is the same on both sides"),
    ("quantised_target.py", "tensors were quantised"),
    ("background.py", "no byte of a later step was in an earlier version"),
  ],
)
def test_an_example_of_one_process_runs(name, text):
  done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=3 * TIMEOUT)
  assert done.returncode == 0, done.stderr
  assert text in done.stdout


def test_an_fsdp_trainer_and_an_engine_meet(tmp_path):
  pytest.importorskip("transformers")
  secret = tmp_path / "key"
  secret.touch(0o600)
  secret.write_text("0123456789abcdef0123456789abcdef\n")
  url = free_url()
  programs = []
  for role in ("trainer", "engine"):
    port = free_url().rsplit(":", 1)[1]
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", port]
    programs.append(
      subprocess.Popen(
        [sys.executable, *command, EXAMPLES / "fsdp_to_tp.py", role, url, secret],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
      )
    )
  try:
    outputs = [program.communicate(timeout=5 * TIMEOUT) for program in programs]
  finally:
    for program in programs:
      program.kill()
  for program, (_, errors) in zip(programs, outputs, strict=True):
    assert program.returncode == 0, errors[-3000:]
  served = outputs[1][0]
  for rank in (2, 3):
    assert f"rank {rank} serves version 3" in served
