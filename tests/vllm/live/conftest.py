# SPDX-License-Identifier: Apache-2.0
"""Servers, trainers and checkpoints for the tests of live updates."""

import contextlib

import pytest
from checkpoints import CONFIGS, write
from server import References, Server
from trainers import Trainer


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
  """checkpoints[model, "a" or "b"]: a folder."""
  root = tmp_path_factory.mktemp("checkpoints")
  found = {}
  for model in CONFIGS:
    for name, seed in (("a", 1), ("b", 2)):
      found[model, name] = root / f"{model}-{name}"
      write(model, seed, found[model, name])
  return found


@pytest.fixture(scope="session")
def reference():
  """reference(folder, **options): what an engine that was started on a checkpoint generates, and its
  checksums."""
  with contextlib.closing(References()) as references:
    yield references.get


@pytest.fixture(scope="session")
def of_b(checkpoints):
  """of_b(model, tp): what a server that was started on B generates, and its checksums."""
  known = {}

  def get(model, tp):
    if (model, tp) not in known:
      with contextlib.closing(Server(checkpoints[model, "b"], tensor_parallel_size=tp)) as server:
        known[model, tp] = server.generate(), server.checksums()
    return known[model, tp]

  return get


@pytest.fixture(scope="session")
def server_on():
  """server_on(folder, **options): a server that was started on a checkpoint. There is one at a time,
  for all tests that follow each other with the same arguments: they leave it as they found it."""
  with contextlib.ExitStack() as stack:
    held = {}

    def get(folder, **more):
      key = (folder, *sorted(more.items()))
      if key not in held or held[key].process.poll() is not None:
        stack.pop_all().close()
        held.clear()
        held[key] = stack.enter_context(contextlib.closing(Server(folder, **more)))
      return held[key]

    yield get


@pytest.fixture(scope="session")
def server_of(checkpoints, server_on):
  """server_of(model, **options): the same on the model's checkpoint A."""
  return lambda model, **more: server_on(checkpoints[model, "a"], **more)


@pytest.fixture
def trainer(tmp_path):
  """trainer(server, workers, text, size, model, **options): a Trainer that has joined."""
  with contextlib.ExitStack() as stack:

    def make(server, workers, text, size, model, **more):
      made = Trainer(server, workers, text, size, model, tmp_path, **more)
      stack.callback(made.kill)
      made.hears("ready")
      return made

    yield make
