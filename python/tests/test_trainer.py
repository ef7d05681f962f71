# SPDX-License-Identifier: Apache-2.0
"""The ranks of a trainer agree on where they meet the engine."""

import os
import subprocess
import sys
import textwrap

import pytest
from ranks import TIMEOUT
from reshard.engines.trainer import _agreed


class Client:
  """A stand-in for the client of an engine of two workers."""

  def get_world_size(self):
    return 2


_NOTHING = {"url": None, "job": None, "secret": None, "engines": None}
_ALL = {"url": "file:///tmp", "job": "a-job", "secret": "0123456789abcdef", "engines": [4]}


def test_a_trainer_of_one_process_makes_what_it_was_not_given():
  made = _agreed(Client(), 1, _NOTHING)
  assert made["engines"] == [2] and made["url"].startswith("file://")
  assert made["job"] != _agreed(Client(), 1, _NOTHING)["job"]
  assert _agreed(Client(), 1, _ALL) == _ALL


def test_without_torch_distributed_all_ranks_are_given_all():
  assert _agreed(None, 2, _ALL) == _ALL
  for name in _ALL:
    with pytest.raises(ValueError, match="pass url=, job=, secret= and workers= on all ranks"):
      _agreed(None, 2, {**_ALL, name: None})


def test_ranks_of_torch_learn_what_rank_0_made(tmp_path):
  program = tmp_path / "program.py"
  program.write_text(
    textwrap.dedent("""
    import torch.distributed as dist
    from test_trainer import _ALL, _NOTHING, Client
    from reshard.engines.trainer import _agreed

    class Down(Client):
      def get_world_size(self):
        raise ConnectionRefusedError("no engine")

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    client = Client() if rank == 0 else None
    for workers in (None, 5):
      made = _agreed(client, 3, {**_NOTHING, "engines": [workers] if workers and rank == 0 else None})
      assert made["engines"] == [workers or 2]
      answers = [None] * 3
      dist.all_gather_object(answers, made)
      assert answers == [made] * 3
    assert _agreed(client, 3, _ALL) == _ALL
    try:
      _agreed(client, 3, {**_ALL, "job": f"job-{rank}"})
      assert rank == 0
    except ValueError as error:
      assert rank > 0 and "job= differs from that of rank 0" in str(error)
    try:
      _agreed(Down() if rank == 0 else None, 3, _NOTHING)
      raise AssertionError("no error")
    except OSError as error:
      assert "no engine" in str(error)
    dist.destroy_process_group()
    """)
  )
  done = subprocess.run(
    [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", program],
    capture_output=True,
    text=True,
    timeout=3 * TIMEOUT,
    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.path.dirname(__file__)},
  )
  assert done.returncode == 0, done.stderr[-3000:]
