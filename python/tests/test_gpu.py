# SPDX-License-Identifier: Apache-2.0
"""Law: tensors of a GPU are used where they are; without a driver, whoever passes one is told why it cannot be used."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emulated
import reshard

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("gpu_*cases.py"))


def run_cases(*arguments, **env):
  """Runs the cases in a process of its own; its last line."""
  command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *map(str, CASES)]
  done = subprocess.run([*command, *arguments], env=os.environ | env, capture_output=True, text=True, timeout=600)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout.splitlines()[-1]


def test_all_cases_on_an_emulated_gpu(tmp_path):
  assert " passed, " in run_cases(**emulated.environment(tmp_path))


def test_all_cases_with_torch_on_a_gpu():
  torch = pytest.importorskip("torch")
  if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU here")
  assert " passed, " in run_cases(RESHARD_TEST_GPU="0")


ALONE = """
import reshard, sys
layout = reshard.layout("hf", reshard.Model.from_tensors("one", {"w": ((4, 6), "F32")}))
try:
  reshard.RankBuffers.allocate(layout, device="cuda")
except reshard.UnsupportedError as error:
  print(error)
assert "torch" not in sys.modules
"""


def test_without_a_driver_the_reason_is_an_exception():
  if importlib.util.find_spec("torch") and __import__("torch").cuda.is_available():
    pytest.skip("this machine has a driver")
  done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
  assert "no NVIDIA driver: " in done.stdout


def test_a_tensor_that_names_a_gpu_is_named_when_there_is_none():
  from test_tensors import OnDevice, matrix

  try:
    reshard.RankBuffers.allocate(matrix(), device="cuda")
  except reshard.Error as error:
    with pytest.raises(type(error), match="rank 0: tensor 'w': is on cuda:0: ") as raised:
      reshard.RankBuffers(matrix(), {0: {"w": OnDevice(2)}})
    assert str(raised.value).endswith(str(error))
  else:
    pytest.skip("this machine has a GPU")
