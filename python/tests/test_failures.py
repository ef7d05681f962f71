# SPDX-License-Identifier: Apache-2.0
"""Law: whatever ends a rank in whatever phase, all others get an error that names it, and no wait lasts."""

import os
import signal

import pytest

import reshard
from ranks import Processes
from session_process import PHASES, session_of, stop_in_a_phase

PLAIN = {"begin": "whole", "transfer": "torn", "check": "torn"}


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_rank_is_named_by_all_others(phase):
  with Processes(3, stop_in_a_phase, 1, phase) as ranks:
    for rank in range(3):
      assert ranks.receive(rank) == "refits"
    assert ranks.receive(1) == "there"
    os.kill(ranks.processes[1].pid, signal.SIGKILL)
    for rank in (0, 2):
      kind, text, state, version = ranks.receive(rank)
      assert kind == "AbortedError" and "rank 1" in text
      if rank == 2 and phase in PLAIN:
        assert (state, version) == (PLAIN[phase], 1)
    assert ranks.join() == [0, -signal.SIGKILL, 0]


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_a_callback_and_in_a_wait_ends_the_refit_everywhere(phase):
  """Rank 1 is in the phase, in Python; the others wait for it in the library."""
  with Processes(3, stop_in_a_phase, 1, phase) as ranks:
    for rank in range(3):
      assert ranks.receive(rank) == "refits"
    assert ranks.receive(1) == "there"
    os.kill(ranks.processes[2].pid, signal.SIGINT)  # waits
    kind, _, state, version = ranks.receive(2)
    assert kind == "KeyboardInterrupt"
    if phase in PLAIN:
      assert (state, version) == (PLAIN[phase], 1)
    os.kill(ranks.processes[1].pid, signal.SIGINT)  # is in the callback
    assert ranks.receive(1)[0] == "KeyboardInterrupt"
    kind, text, *_ = ranks.receive(0)
    assert kind == "AbortedError" and "rank 2 aborted: " in text
    assert ranks.join() == [0, 0, 0]


def wait_alone(pipe, join):
  """Rank 0 refits, the others never come."""
  group = reshard.join(**join)
  session, *_ = session_of(group, on_phase=lambda phase: pipe.send("ready"))
  if group.rank != 0:
    pipe.send("ready")
  else:
    try:
      session.refit(1)
    except KeyboardInterrupt:
      pipe.send("interrupted")
    try:
      session.refit(2)
    except reshard.InvalidArgumentError as error:
      pipe.send(str(error))
  pipe.recv()


def test_ctrl_c_ends_a_wait_for_ranks_that_never_come():
  with Processes(3, wait_alone) as ranks:
    for rank in range(3):
      assert ranks.receive(rank) == "ready"
    os.kill(ranks.processes[0].pid, signal.SIGINT)
    assert ranks.receive(0) == "interrupted"
    assert "group was aborted" in ranks.receive(0)


def join_alone(pipe, join):
  try:
    pipe.send("joins")
    reshard.join(**join)
  except KeyboardInterrupt:
    pipe.send("interrupted")


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_a_join(rank):
  with Processes(1, join_alone_as, rank) as ranks:
    assert ranks.receive(0) == "joins"
    os.kill(ranks.processes[0].pid, signal.SIGINT)
    assert ranks.receive(0) == "interrupted"
    assert ranks.join() == [0]


def join_alone_as(pipe, join, rank):
  join_alone(pipe, {**join, "rank": rank, "size": 2})
