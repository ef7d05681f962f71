# SPDX-License-Identifier: Apache-2.0
"""Processes of torch.distributed that call functions for a test until it ends."""

import contextlib
import multiprocessing

from ranks import TIMEOUT


@contextlib.contextmanager
def serving(serve, size, folder):
  """Pipes to `size` processes, each of which runs serve(pipe, rank, size, store) until it receives None.

  folder  empty; has the file over which the processes meet
  """
  context = multiprocessing.get_context("spawn")
  pipes, started = [], []
  # Not daemons, which may have no children: Megatron writes checkpoints in child processes.
  for rank in range(size):
    mine, theirs = context.Pipe()
    pipes.append(mine)
    started.append(context.Process(target=serve, args=(theirs, rank, size, folder / "store")))
    started[-1].start()
  try:
    yield pipes
  finally:
    for pipe in pipes:
      with contextlib.suppress(OSError):  # a process that has died
        pipe.send(None)
    for process in started:
      process.join(TIMEOUT)
      process.kill()


def run(processes, name, *arguments):
  """Calls a function of this name on every rank, and returns what each returned."""
  for pipe in processes:
    pipe.send((name, arguments))
  found = []
  for rank, pipe in enumerate(processes):
    assert pipe.poll(3 * TIMEOUT), f"rank {rank} says nothing"
    found.append(pipe.recv())
  failed = [f"rank {rank}: {result}" for rank, (fine, result) in enumerate(found) if not fine]
  assert not failed, "\n".join(failed)
  return [result for _, result in found]
