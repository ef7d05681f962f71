# SPDX-License-Identifier: Apache-2.0
"""Weights arrive while an engine serves the old ones; when the trainer asks, it has them as if it had been started on them."""

import contextlib

import pytest
from server import Server


@pytest.fixture(scope="module")
def pair(checkpoints):
  """A server of two workers on Llama's checkpoint A."""
  with contextlib.closing(Server(checkpoints["llama", "a"], tensor_parallel_size=2)) as server:
    yield server


@pytest.mark.parametrize("options", ({}, {"snapshot": True, "verify": True}, {"route": "checkpoint", "pause": "wait"}), ids=str)
def test_the_engine_serves_the_old_weights_until_the_trainer_has_it_take_the_new_ones(pair, checkpoints, of_b, trainer, options):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  of_a = pair.generate(), pair.checksums()
  ranks = trainer(pair, 2, "megatron:tp=2,pp=2", 4, a, **options)
  for path, before, after in ((b, of_a, of_b("llama", 2)), (a, of_b("llama", 2), of_a)):
    version = pair.version()
    ranks.begin(path)
    assert (pair.generate(), pair.checksums(), pair.version()) == (*before, version)
    (said,) = {line.split()[1] for line in ranks.finish()}
    assert (pair.generate(), pair.checksums(), pair.version()) == (*after, said)
  ranks.update(b)
  assert (pair.generate(), pair.checksums()) == of_b("llama", 2)
  ranks.update(a)
  ranks.close()


def test_a_trainer_that_dies_behind_the_arrival_leaves_the_old_weights(pair, checkpoints, of_b, trainer):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  before = pair.generate(), pair.checksums(), pair.version()
  ranks = trainer(pair, 2, "megatron:tp=2,pp=2", 4, a)
  ranks.begin(b)
  ranks.kill()
  ranks.ends()
  assert (pair.generate(), pair.checksums(), pair.version()) == before
  again = trainer(pair, 2, "hf", 1, a)
  again.update(b)
  assert (pair.generate(), pair.checksums()) == of_b("llama", 2)
  again.update(a)
  again.close()
