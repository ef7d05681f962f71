# SPDX-License-Identifier: Apache-2.0
"""A trainer behind vLLM's own interface for trainers updates an engine."""

import subprocess
import sys
from pathlib import Path

from server import environment

_PROGRAM = Path(__file__).parent / "factory_trainer.py"


def test_a_trainer_of_vllms_factory_sends_a_weight_source(
  server_of, checkpoints, reference, trainer
):
  server = server_of("llama", tensor_parallel_size=1)
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  before = server.generate()
  command = [sys.executable, _PROGRAM, server.url, "1", a, b]
  done = subprocess.run(command, env=environment(), capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-3000:]
  server.call("reset_prefix_cache", {})  # vLLM's client does not
  assert (server.generate(), server.checksums()) == reference(b, tensor_parallel_size=1)
  assert done.stdout.split()[-1] == server.version()
  trainer(server, 1, "hf", 1, a).update(a)
  assert server.generate() == before
