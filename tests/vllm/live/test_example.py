# SPDX-License-Identifier: Apache-2.0
"""The example of a trainer updates a real server."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

from server import Server, environment

EXAMPLE = Path(__file__).parents[3] / "examples/python/vllm_live_update.py"


def test_the_example_updates_a_server_after_each_step(checkpoints):
  checkpoint = checkpoints["llama", "a"]
  with contextlib.closing(Server(checkpoint, tensor_parallel_size=2)) as server:
    before = server.generate(), server.checksums()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
      [*command, str(EXAMPLE), str(checkpoint), server.url, "--steps", "2"],
      env=environment(),
      capture_output=True,
      text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.findall("^version ([0-9]+): sent", done.stdout, re.MULTILINE) == ["1", "2"]
    assert server.version() == "2"
    after = server.generate(), server.checksums()
    assert after[0] != before[0] and not set(after[1].items()) <= set(before[1].items())
