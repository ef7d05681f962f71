# SPDX-License-Identifier: Apache-2.0
"""Processes that a framework would start, and the framework itself or what stands in for it."""

import asyncio
import contextlib
import importlib
import inspect
import multiprocessing
import pathlib
import sys
import traceback

from ranks import TIMEOUT
from reshard.tracing.vision import import_torchvision

STANDINS = pathlib.Path(__file__).parent / "standins"

import_torchvision()  # transformers and SGLang import it if it is there


def use(name):
  """Imports a framework, or the stand-in for its interface. True if it is the framework."""
  root = name.split(".")[0]
  try:
    module = importlib.import_module(name)
  except ImportError:
    for loaded in [m for m in sys.modules if m.split(".")[0] == root]:
      del sys.modules[loaded]
    sys.path.insert(0, str(STANDINS / root))
    module = importlib.import_module(name)
  return STANDINS not in pathlib.Path(module.__file__).parents


def serve(pipe, module, options):
  """One worker: calls functions of a module by name, with what its make(**options) gave first."""
  try:
    functions = importlib.import_module(module)
    state = functions.make(**options)
    pipe.send((True, None))
  except BaseException:
    pipe.send((False, traceback.format_exc()))
    return
  while (said := pipe.recv()) is not None:
    name, arguments = said
    try:
      result = getattr(functions, name)(state, *arguments)
      if inspect.iscoroutine(result):
        result = asyncio.run(result)
      pipe.send((True, result))
    except BaseException as error:
      pipe.send((False, (type(error).__name__, str(error))))
  functions.end(state)


class Workers:
  """One process for each dict of options."""

  def __init__(self, module, options):
    context = multiprocessing.get_context("spawn")
    self.pipes, self.processes = [], []
    for mine in options:
      here, there = context.Pipe()
      process = context.Process(target=serve, args=(there, module, mine), daemon=True)
      process.start()
      there.close()
      self.pipes.append(here)
      self.processes.append(process)
    for rank, (fine, error) in enumerate(self.answers(range(len(self.pipes)), 3 * TIMEOUT)):
      assert fine, f"worker {rank}: {error}"

  def ask(self, ranks, name, *arguments):
    """Begins a call in some workers; arguments may be lists with an entry for each."""
    for i, rank in enumerate(ranks):
      self.pipes[rank].send((name, [a[i] if isinstance(a, list) else a for a in arguments]))

  def answers(self, ranks, timeout=TIMEOUT):
    """(True, result) or (False, (class, message)) of each."""
    found = []
    for rank in ranks:
      assert self.pipes[rank].poll(timeout), f"worker {rank} hangs"
      try:
        found.append(self.pipes[rank].recv())
      except EOFError:
        found.append((False, ("died", "")))
    return found

  def call(self, ranks, name, *arguments):
    """The results of a call in some workers."""
    self.ask(ranks, name, *arguments)
    found = self.answers(ranks)
    for rank, (fine, result) in zip(ranks, found, strict=True):
      assert fine, f"worker {rank}: {result}"
    return [result for _, result in found]

  def close(self):
    for pipe in self.pipes:
      try:
        pipe.send(None)
      except OSError:
        pass
    for process in self.processes:
      process.join(TIMEOUT)
      process.kill()
