# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group as threads, and as processes that a test starts, kills and interrupts."""

import multiprocessing
import random
import secrets
import signal
import threading

import reshard

TIMEOUT = 60  # seconds until a test that hangs fails


def in_threads(size, body, groups=None):
  """Calls body(group) for each rank, and returns their results. Raises what the first rank raised."""
  groups = reshard.local(size) if groups is None else groups
  results, errors = [None] * size, [None] * size

  def run(rank):
    try:
      results[rank] = body(groups[rank])
    except BaseException as error:
      errors[rank] = error

  threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
  for thread in threads:
    thread.start()
  for rank, thread in enumerate(threads):
    thread.join(TIMEOUT)
    assert not thread.is_alive(), f"rank {rank} hangs"
  for error in errors:
    if error is not None:
      raise error
  return results


def errors_in_threads(size, body):
  """The same for a body that raises on every rank: returns the exceptions."""

  def caught(group):
    try:
      body(group)
    except Exception as error:
      return error
    return None

  return in_threads(size, caught)


def free_url():
  """A port below those that the system gives to whoever asks for any, which another test may get first."""
  return f"tcp://127.0.0.1:{random.randrange(20_000, 32_768)}"


def run_in_process(body, *arguments):
  """Takes Ctrl-C, even if the tests run in the background of a shell, which ignores it there."""
  signal.signal(signal.SIGINT, signal.default_int_handler)
  body(*arguments)


class Processes:
  """One process for each rank, with a pipe to each: body(pipe, join, *arguments)."""

  def __init__(self, size, body, *arguments, transport="shm", url=None):
    context = multiprocessing.get_context("spawn")
    url = url or free_url()
    secret = secrets.token_hex(16)
    self.pipes, self.processes = [], []
    for rank in range(size):
      mine, theirs = context.Pipe()
      options = {"url": url, "rank": rank, "size": size, "secret": secret, "transport": transport}
      self.processes.append(context.Process(target=run_in_process, args=(body, theirs, options, *arguments), daemon=True))
      self.pipes.append(mine)
      self.processes[-1].start()
      theirs.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      if process.is_alive():
        process.kill()
      process.join(TIMEOUT)

  def receive(self, rank):
    assert self.pipes[rank].poll(TIMEOUT), f"rank {rank} says nothing"
    return self.pipes[rank].recv()

  def send(self, rank, message):
    self.pipes[rank].send(message)

  def join(self):
    for rank, process in enumerate(self.processes):
      process.join(TIMEOUT)
      assert not process.is_alive(), f"process {rank} hangs"
    return [process.exitcode for process in self.processes]
