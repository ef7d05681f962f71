# SPDX-License-Identifier: Apache-2.0
"""Law: ranks meet by URL, in threads, over a store or torch's process group, and learn of each other's end."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

import reshard
from ranks import TIMEOUT, Processes, errors_in_threads, free_url, in_threads
from reshard import _rendezvous


def test_threads_are_ranks_of_a_local_group():
  def body(group):
    assert group.size == 3 and group.transport == "inproc" and not group.closed
    group.status()
    group.barrier()
    return group.all_gather(b"%d" % group.rank)

  assert in_threads(3, body) == [[b"0", b"1", b"2"]] * 3


def test_an_abort_reaches_every_rank_with_its_reason():
  def body(group):
    if group.rank == 1:
      group.abort("the trainer is out of data")
    group.barrier()

  for error in errors_in_threads(3, body):
    assert isinstance(error, reshard.AbortedError)
    assert "rank 1 aborted: the trainer is out of data" in str(error)


def test_a_context_manager_aborts_for_an_exception_and_closes():
  def body(group):
    with group:
      if group.rank == 0:
        raise ValueError("no gpu")
      group.barrier()

  first, second = errors_in_threads(2, body)
  assert isinstance(first, ValueError)
  assert "rank 0 aborted: ValueError: no gpu" in str(second)


def test_a_closed_group_says_so():
  group = reshard.local(1)[0]
  group.close()
  group.close()
  assert group.closed and "closed" in repr(group)
  for call in (group.status, group.barrier):
    with pytest.raises(reshard.InvalidArgumentError, match="the group is closed"):
      call()


def test_a_group_takes_one_call_at_a_time():
  groups = reshard.local(2)
  entered, go = threading.Event(), threading.Event()

  def wait():
    entered.set()
    groups[0].barrier()
    go.set()

  thread = threading.Thread(target=wait)
  thread.start()
  entered.wait(TIMEOUT)
  errors = []
  while not errors:  # until the other thread is in its call
    try:
      groups[0].all_gather(b"", timeout=0.01)
    except reshard.Error as error:
      errors.append(error)
  if "is in progress; a group takes one call at a time" in str(errors[0]):
    groups[1].barrier()
    assert go.wait(TIMEOUT)
  else:  # this call came first, and the other one was refused
    assert isinstance(errors[0], reshard.DeadlineError)
  thread.join(TIMEOUT)


@pytest.mark.parametrize(
  ("options", "error", "text"),
  [
    ({"rank": 0, "size": 2, "secret": "x"}, reshard.InvalidArgumentError, "a secret of 1 characters"),
    ({"rank": 0, "size": 2}, reshard.InvalidArgumentError, "needs a secret"),
    ({"rank": 2, "size": 2, "secret": "x" * 16}, reshard.InvalidArgumentError, "rank 2 in a group of 2"),
    ({"rank": 0, "size": 2, "secret": "x" * 16, "transport": "pigeon"}, reshard.InvalidArgumentError, "no such transport"),
    ({"rank": 0, "size": 2, "secret_file": "/nowhere"}, reshard.NotFoundError, "/nowhere"),
    ({"secret": "x" * 16}, reshard.InvalidArgumentError, "no rank and size, and no launcher"),
    ({"rank": 0, "size": 2, "secret": "x" * 16, "timeout": 0.05}, reshard.DeadlineError, "rank 1 did not arrive"),
  ],
)
def test_join_says_what_is_wrong(options, error, text, monkeypatch):
  for name in ("RANK", "WORLD_SIZE"):
    monkeypatch.delenv(name, raising=False)
  with pytest.raises(error, match=text):
    reshard.join(free_url(), **options)


def count(pipe, join, url=None):
  with reshard.join(**{**join, "url": url or join["url"]}) as group:
    pipe.send((group.rank, group.transport, group.all_gather(bytes([group.rank]))))
    group.barrier()


@pytest.mark.parametrize("transport", ["shm", "ucx", "gloo"])
def test_processes_join_over_tcp(transport):
  row = reshard.find_transport(transport) if hasattr(reshard, "find_transport") else None
  if transport != "shm" and (row is None or not row.available):
    pytest.skip(f"{transport} is not available here")
  with Processes(3, count, transport=transport) as ranks:
    for rank in range(3):
      assert ranks.receive(rank) == (rank, transport, [b"\x00", b"\x01", b"\x02"])
    assert ranks.join() == [0, 0, 0]


def test_processes_join_in_a_folder_without_a_secret(tmp_path):
  with Processes(2, count, f"file://{tmp_path}") as ranks:
    for rank in range(2):
      assert ranks.receive(rank)[2] == [b"\x00", b"\x01"]
    assert ranks.join() == [0, 0]
  assert not list(tmp_path.iterdir())


def wait_for_others(pipe, join):
  group = reshard.join(**join)
  pipe.send("joined")
  if group.rank == 1:
    pipe.recv()
  try:
    group.barrier()
  except reshard.AbortedError as error:
    pipe.send((str(error), group.lost()))


def test_the_death_of_a_process_is_an_error_that_names_its_rank():
  with Processes(3, wait_for_others) as ranks:
    for rank in range(3):
      assert ranks.receive(rank) == "joined"
    os.kill(ranks.processes[1].pid, signal.SIGKILL)
    for rank in (0, 2):
      text, lost = ranks.receive(rank)
      assert "rank 1" in text and 1 in lost
    assert ranks.join() == [0, -signal.SIGKILL, 0]


class Shared:
  """A store as a user may have one: set and get, and a KeyError for a key that is not there yet."""

  def __init__(self):
    self.values = {}

  def set(self, key, value):
    self.values[key] = value

  def get(self, key):
    return self.values[key]


class Actor:
  """Stands for the handle of a Ray actor: methods are called by .remote(), and give futures."""

  class Method:
    def __init__(self, function):
      self.function = function

    def remote(self, *arguments):
      from concurrent.futures import Future

      future = Future()
      try:
        future.set_result(self.function(*arguments))
      except Exception as error:
        future.set_exception(error)
      return future

  def __init__(self, store):
    self.set, self.get = self.Method(store.set), self.Method(store.get)


@pytest.mark.parametrize("kind", [Shared, lambda: Actor(Shared())])
def test_a_store_is_a_rendezvous(kind):
  store = kind()

  def body(rank):
    with reshard.from_store(store, rank=rank, size=3) as group:
      got = group.all_gather(b"%d" % group.rank)
      group.barrier()
      return got

  assert in_threads(3, body, groups=range(3)) == [[b"0", b"1", b"2"]] * 3


def transports_over(store, hosts, monkeypatch, transport="auto"):
  """Of two ranks that take themselves to be on these hosts: what each has, or its error."""
  here = threading.local()
  monkeypatch.setattr(_rendezvous, "_host", lambda: here.name)

  def body(rank):
    here.name = hosts[rank]
    try:
      with reshard.from_store(store, rank=rank, size=2, transport=transport) as group:
        return group.transport
    except reshard.UnsupportedError as error:
      return str(error)

  return in_threads(2, body, groups=range(2))


def test_the_transport_is_chosen_by_where_the_ranks_are(monkeypatch):
  assert transports_over(Shared(), ["a", "a"], monkeypatch) == ["shm", "shm"]
  between = [name for name in ("ucx", "gloo") if reshard.find_transport(name).available]
  if between:
    assert transports_over(Shared(), ["a", "b"], monkeypatch) == [between[0]] * 2
  monkeypatch.setattr(_rendezvous, "_BETWEEN_HOSTS", ("nvshmem",))
  for said in transports_over(Shared(), ["a", "b"], monkeypatch):
    assert said.startswith("join: the ranks are on 2 hosts, and no transport works between them (nvshmem: ")


def test_a_store_without_the_other_ranks_is_a_deadline():
  with pytest.raises(reshard.DeadlineError, match="rank 1 did not arrive"):
    reshard.from_store(Shared(), rank=0, size=2, timeout=0.05)
  with pytest.raises(reshard.DeadlineError, match="rank 0 did not arrive"):
    reshard.from_store(Shared(), rank=1, size=2, timeout=0.05)
  with pytest.raises(reshard.InvalidArgumentError, match="a dict is no store"):
    reshard.from_store({}, rank=0, size=2)


def test_from_torch_needs_torch_distributed():
  with pytest.raises(reshard.InvalidArgumentError, match="init_process_group"):
    reshard.from_torch()


def test_torchrun_processes_meet_over_their_process_group(tmp_path):
  program = tmp_path / "program.py"
  program.write_text(
    textwrap.dedent("""
    import weakref
    import torch.distributed as dist
    import reshard
    from reshard.live import _groups
    from reshard.live._groups import close_groups, first_group, shared_group
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1])]
    first = shared_group()
    assert first is shared_group() is shared_group(dist.group.WORLD) and first.transport == "shm"
    if rank in (0, 2):
      assert shared_group(pairs[0]) is not first and shared_group(pairs[0]).size == 2
    first.barrier()
    first.close()
    assert shared_group() is not first and shared_group().all_gather(b"") == [b""] * 3
    close_groups()
    if rank == 0:  # as if another process group had had this identity, on this rank only
      _groups._groups[id(dist.group.WORLD), "auto", None] = (weakref.ref(pairs[0]), reshard.local(1)[0])
    first = shared_group(transport="shm")
    assert shared_group() is not first and first_group() is first and first_group().all_gather(b"") == [b""] * 3
    close_groups()
    with reshard.from_torch() as group:
      assert (group.rank, group.size) == (rank, 3)
      assert group.all_gather(b"%d" % rank) == [b"0", b"1", b"2"]
      group.barrier()
    if rank in (0, 2):
      with reshard.from_torch(pairs[0]) as group:
        assert (group.rank, group.size) == (rank // 2, 2)
        group.barrier()
    else:
      try:
        reshard.from_torch(pairs[0])
      except reshard.InvalidArgumentError as error:
        assert "does not belong" in str(error)
    with reshard.join("tcp://127.0.0.1:%d" % PORT, secret="0123456789abcdef") as group:
      assert (group.rank, group.size) == (rank, 3)  # as torchrun says
      group.barrier()
    dist.destroy_process_group()
    """).replace("PORT", free_url().rsplit(":", 1)[1])
  )
  done = subprocess.run(
    [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--master-port", free_url().rsplit(":", 1)[1], program],
    capture_output=True,
    text=True,
    timeout=3 * TIMEOUT,
    env={**os.environ, "OMP_NUM_THREADS": "1"},
  )
  assert done.returncode == 0, done.stderr[-3000:]


def test_rank_0_may_listen_before_it_joins():
  with socket.create_server(("127.0.0.1", 0)) as listener:
    url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def body(rank):
      mine = {"listener": listener} if rank == 0 else {}
      with reshard.join(url, rank=rank, size=2, secret="0123456789abcdef", **mine) as group:
        return group.all_gather(b"%d" % rank)

    assert in_threads(2, body, groups=range(2)) == [[b"0", b"1"]] * 2
  with pytest.raises(ValueError):  # it is closed
    reshard.join(url, rank=0, size=2, secret="0123456789abcdef", listener=listener)
  with socket.socket() as silent, pytest.raises(reshard.InvalidArgumentError, match="not a TCP socket that listens"):
    reshard.join(url, rank=0, size=2, secret="0123456789abcdef", listener=silent)


def test_the_number_of_a_gpu_is_checked_and_nccl_says_what_it_lacks(tmp_path):
  with pytest.raises(reshard.InvalidArgumentError, match="gpu -2: must be 0 or more, or None"):
    reshard.join(f"file://{tmp_path}", rank=0, size=1, gpu=-2)
  with reshard.join(f"file://{tmp_path}", rank=0, size=1, gpu=0) as group:  # shm passes through the host.
    assert group.transport == "shm"
  if not reshard.find_transport("nccl").available:
    with pytest.raises(reshard.UnsupportedError, match="nccl"):
      reshard.join(f"file://{tmp_path}", rank=0, size=1, transport="nccl", job="b", gpu=0)
