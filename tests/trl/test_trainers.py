# SPDX-License-Identifier: Apache-2.0
"""Protects: after each step of TRL's trainers, their vLLM server generates with the weights that the step left.

The servers and trainers are real, on the CPU. A server's workers compare what their kernels read with a fresh load of the
trainer's tensors (docs/check.md), and TRL compares the log-probabilities of server and trainer: that the latter would show
stale weights is tested, too."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import grpo_tiny

TRAINER = pathlib.Path(__file__).parent / "trainer.py"
DIFFERENCE = "sampling/sampling_logp_difference/max"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  """(checkpoint, URL) of a server, which all trainers update, one after the other."""
  folder = tmp_path_factory.mktemp("grpo")
  grpo_tiny.write_checkpoint(folder)
  with grpo_tiny.server(folder, folder / "server.log") as url:
    yield folder, url


def trained(server, out, kind, processes=1, **env):
  """What rank 0 of a trainer says: its updates, and what TRL logged. Under FSDP2, and only there, its parameters are DTensors."""
  command = [sys.executable, str(TRAINER), kind, *map(str, server)]
  if processes > 1:
    command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
  env = os.environ | {"OUT": str(out), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | env
  done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1200)
  assert done.returncode == 0, done.stderr[-4000:]
  said = [json.loads(line) for line in re.findall(r"^said (.*)$", done.stdout, re.MULTILINE)]
  assert (said[-1]["sharded"] > 0) == (kind == "fsdp")
  updates = [one for one in said if "version" in one]
  return updates, [one["logs"] for one in said if "logs" in one]


@pytest.mark.parametrize(("kind", "processes"), [("grpo", 1), ("ddp", 2), ("fsdp", 2), ("peft", 1), ("rloo", 1)])
def test_the_server_has_the_weights_of_each_step(kind, processes, server, tmp_path):
  updates, logs = trained(server, tmp_path, kind, processes)
  versions = [one["version"] for one in updates]
  assert versions == list(range(versions[0], versions[0] + 3))
  assert all(one["equal"] and one["tensors"] >= 30 for one in updates)
  if kind != "rloo":  # which does not log it
    assert max(log[DIFFERENCE] for log in logs if DIFFERENCE in log) < 1e-4


def test_each_worker_of_a_server_gets_its_shards(tmp_path):
  grpo_tiny.write_checkpoint(tmp_path)
  with grpo_tiny.server(tmp_path, tmp_path / "server.log", workers=2) as url:
    updates, logs = trained((tmp_path, url), tmp_path / "out", "fsdp", 2)
  assert [one["version"] for one in updates] == [1, 2, 3]
  assert all(one["equal"] and one["tensors"] >= 60 for one in updates)  # of both workers
  assert max(log[DIFFERENCE] for log in logs if DIFFERENCE in log) < 1e-4


def test_log_probabilities_show_stale_weights(server, tmp_path):
  updates, logs = trained(server, tmp_path, "grpo", STALE="1")
  assert len(updates) == 1
  assert [log[DIFFERENCE] > 1e-3 for log in logs if DIFFERENCE in log] == [False, True, True]


def test_online_dpo_updates_the_server(server, tmp_path):
  updates, _ = trained(server, tmp_path, "online_dpo")
  assert len(updates) == 3 and all(one["equal"] for one in updates)


def test_the_example_runs(tmp_path):
  command = [sys.executable, EXAMPLES / "grpo_tiny.py", "--steps", "20", "--plot", tmp_path / "run.svg", "--log", tmp_path / "run.jsonl"]
  done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
  assert done.returncode == 0, done.stderr[-4000:]
  rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
  assert [row["version"] for row in rows] == list(range(1, 21))
  assert sum(row["reward"] for row in rows[-5:]) > sum(row["reward"] for row in rows[:5])
  assert all(row["tensors_equal"] >= 30 and row["logprob_difference"] < 1e-4 for row in rows)
  with contextlib.closing((tmp_path / "run.svg").open()) as picture:
    assert "<svg" in picture.read()
