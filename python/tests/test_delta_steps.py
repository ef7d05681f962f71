# SPDX-License-Identifier: Apache-2.0
"""Protects: deltas between real steps of an optimiser are small, plain and quantised, and their chains give the last
version byte for byte (bench/python/deltas.py, with a smaller model and fewer steps)."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).parents[2] / "bench" / "python" / "deltas.py"


def test_deltas_of_an_optimiser_are_small_and_exact(tmp_path):
  for package in ("torch", "transformers", "safetensors"):
    if importlib.util.find_spec(package) is None:
      pytest.skip(f"{package} is not installed")
  sizes = ("--steps", "4", "--hidden", "128", "--layers", "2", "--warm-up", "5", "--json", str(tmp_path / "rows"))
  done = subprocess.run(
    [sys.executable, BENCH, tmp_path / "versions", *sizes], capture_output=True, text=True, check=False, timeout=600
  )
  assert done.returncode == 0, done.stderr[-3000:]
  rows = json.loads((tmp_path / "rows").read_text())
  assert [(row["rate"], row["format"]) for row in rows[:-1]] == [
    (rate, form) for rate in (1e-6, 1e-5) for form in ("bf16", "fp8_block", "mxfp4")
  ]
  assert all(row["chain_is_equal"] for row in rows)
  share = {(row["rate"], row["format"]): row["share"] for row in rows}
  changed = {(row["rate"], row["format"]): row["changed"] for row in rows}
  assert 0.0005 < share[1e-6, "bf16"] < 0.03 and share[1e-5, "bf16"] < 0.1
  for rate in (1e-6, 1e-5):
    assert changed[rate, "fp8_block"] < changed[rate, "bf16"], "most changes vanish in FP8"
  assert rows[-1]["changed"] > 0.99 and 1 < rows[-1]["share"] < 1.05
