# SPDX-License-Identifier: Apache-2.0
"""Servers, trainers and checkpoints for the tests of live updates."""

import contextlib

import pytest
from checkpoints import CONFIGS, write
from server import Server
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
def of_b(checkpoints):
  """of_b(model, tp): what an engine that was started on B generates, and its checksums."""
  known = {}

  def get(model, tp):
    if (model, tp) not in known:
      with contextlib.closing(Server(checkpoints[model, "b"], tp)) as server:
        known[model, tp] = server.generate(), server.checksums()
    return known[model, tp]

  return get


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
