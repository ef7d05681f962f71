# SPDX-License-Identifier: Apache-2.0
"""The code of docs/patch_points.md updates running engines, with stand-ins for the frameworks around it."""

import json
import subprocess
import sys
from pathlib import Path

from server import environment

HERE = Path(__file__).parent


def test_skyrl_workers_update_a_server(server_of, checkpoints, of_b, trainer):
  server = server_of("llama")
  generated, checksums = of_b("llama", 1)
  ranks = trainer(server, 1, "fsdp:shard=2", 2, checkpoints["llama", "a"], program="skyrl_rank.py")
  before = server.generate()
  ranks.update(checkpoints["llama", "a"])
  assert server.generate() == before
  ranks.update(checkpoints["llama", "b"])
  assert (server.generate(), server.checksums()) == (generated, checksums)
  ranks.update(checkpoints["llama", "a"])  # as the next test expects it
  ranks.close()


def test_openrlhf_updates_an_engine(checkpoints, reference):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  command = [sys.executable, str(HERE / "openrlhf_actor.py"), str(a), str(b)]
  done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800)
  assert done.returncode == 0, done.stderr[-4000:]
  (said,) = (json.loads(line.removeprefix("said ")) for line in done.stdout.splitlines() if line.startswith("said "))
  assert said == [reference(a)[0], reference(a)[0], reference(b)[0]]
