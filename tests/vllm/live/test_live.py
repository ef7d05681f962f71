# SPDX-License-Identifier: Apache-2.0
"""A live update leaves an engine exactly as if it had been started on the new checkpoint."""

import contextlib

import pytest
from checkpoints import CONFIGS
from server import Server
from trainers import Trainer

_TRAINERS = (("hf", 1), ("fsdp:shard=3", 3), ("megatron:tp=2,pp=2", 4))


@pytest.fixture(scope="module", params=[(m, tp) for tp in (1, 2) for m in CONFIGS], ids=str)
def engine(request, checkpoints):
  """A server that was started on checkpoint A: (model, tp, server)."""
  model, tp = request.param
  with contextlib.closing(Server(checkpoints[model, "a"], tensor_parallel_size=tp)) as server:
    yield model, tp, server


def test_every_trainer_brings_it_from_a_to_b(engine, checkpoints, of_b, trainer):
  model, tp, server = engine
  a, b = checkpoints[model, "a"], checkpoints[model, "b"]
  of_a = server.generate(), server.checksums()
  assert of_a[0] != of_b(model, tp)[0]
  for text, size in _TRAINERS:
    ranks = trainer(server, tp, text, size, a, pause="wait")
    ranks.update(b)
    assert (server.generate(), server.checksums()) == of_b(model, tp), text
    versions = {line.split()[1] for line in ranks.update(a)}
    assert (server.generate(), server.checksums()) == of_a, text
    assert {server.version()} == versions
    ranks.close()


@pytest.fixture(scope="module")
def pair(checkpoints):
  """A server of two workers on Llama's checkpoint A."""
  with contextlib.closing(Server(checkpoints["llama", "a"], tensor_parallel_size=2)) as server:
    yield server


@pytest.mark.parametrize(
  "options",
  (
    {"route": "local"},
    {"route": "local", "in_place": True},
    {"route": "checkpoint"},
    {"verify": True},
  ),
  ids=str,
)
def test_every_route_gives_the_same(pair, checkpoints, of_b, trainer, options):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  ranks = trainer(pair, 2, "megatron:tp=2,pp=2", 4, a, **options)
  ranks.update(b)
  assert (pair.generate(), pair.checksums()) == of_b("llama", 2)
  ranks.update(a)
  ranks.close()


def test_a_trainer_that_dies_leaves_the_old_weights(pair, checkpoints, of_b, trainer):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  before = pair.generate(), pair.checksums(), pair.version()
  for phase in ("begin", "transfer", "check"):
    for victim in (0, 3):
      ranks = trainer(pair, 2, "megatron:tp=2,pp=2", 4, a)
      for rank, process in enumerate(ranks.ranks):
        words = ["update", str(b)] + ([phase] if rank == victim else [])
        process.stdin.write(" ".join(words) + "\n")
        process.stdin.flush()
      said = ranks.ends()
      for rank, text in enumerate(said):
        assert rank == victim or "AbortedError" in text, (phase, rank, text[-2000:])
      assert (pair.generate(), pair.checksums(), pair.version()) == before, (phase, victim)
  ranks = trainer(pair, 2, "hf", 1, a)
  ranks.update(b)
  assert (pair.generate(), pair.checksums()) == of_b("llama", 2)
  ranks.update(a)
  ranks.close()


def test_a_trainer_that_dies_in_the_commit_leaves_one_version(pair, checkpoints, of_b, trainer):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  of_a = pair.generate(), pair.checksums()
  for phase in ("commit", "committed"):
    ranks = trainer(pair, 2, "megatron:tp=2,pp=2", 4, a)
    for rank, process in enumerate(ranks.ranks):
      process.stdin.write(f"update {b} {phase if rank == 0 else ''}\n")
      process.stdin.flush()
    ranks.ends()
    assert (pair.generate(), pair.checksums()) in (of_a, of_b("llama", 2)), phase
    again = trainer(pair, 2, "hf", 1, a)
    again.update(a)
    assert (pair.generate(), pair.checksums()) == of_a
    again.close()


def test_a_hundred_updates_take_no_memory(pair, checkpoints, trainer):
  ranks = trainer(pair, 2, "hf", 1, checkpoints["llama", "a"])
  for _ in range(5):
    ranks.update(checkpoints["llama", "b"])
    ranks.update(checkpoints["llama", "a"])
  before = pair.memory()
  for _ in range(50):
    ranks.update(checkpoints["llama", "b"])
    ranks.update(checkpoints["llama", "a"])
  # 1.8 MB of weights in each: a copy kept for each update would be 180 MB on each worker.
  assert pair.memory() - before < 24 << 20
  ranks.close()


def test_another_model_is_refused_and_nothing_happens(pair, checkpoints, tmp_path):
  before = pair.generate(), pair.version()
  made = Trainer(pair, 2, "hf", 1, checkpoints["mixtral", "a"], tmp_path)
  (said,) = made.ends()
  assert "refuses the trainer's tensors" in said, said[-2000:]
  assert (pair.generate(), pair.version()) == before
