# SPDX-License-Identifier: Apache-2.0
"""Law: processes of a Ray cluster become a group through an actor, and need it no longer than that."""

import subprocess
import sys

import pytest

import reshard
from ranks import TIMEOUT

ray = pytest.importorskip("ray", reason="needs `pip install ray` (240 MB)")


@pytest.fixture(scope="module", autouse=True)
def cluster():
  ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
  yield
  ray.shutdown()


def trainers_and_engines(size):
  """Actors that are ranks. The class travels to them by value: they cannot import this file."""

  @ray.remote(num_cpus=0)
  class Rank:
    def join(self, actor, rank, size, **options):
      self.group = reshard.from_ray(actor, rank=rank, size=size, **options)
      return self.group.all_gather(b"%d" % rank)

    def refit(self, version):
      model = reshard.Model.from_tensors("one", {"w": ((8, 4), "float32")})
      source, target = reshard.layout("fsdp:shard=2", model), reshard.layout("hf:offset=2", model)
      me = self.group.rank
      memory = reshard.RankBuffers.allocate(target if me == 2 else source, [me])
      tensors = memory.tensors(me)
      if me != 2:
        for tensor in tensors.values():
          raw = tensor.raw()
          raw[:] = bytes([version + me]) * raw.nbytes
      sides = {"target_tensors": memory} if me == 2 else {"source_tensors": memory}
      with reshard.Session(self.group, source=source, target=target, **sides) as session:
        session.refit(version)
      return {name: bytes(tensor.raw()) for name, tensor in tensors.items()}

    def barrier(self):
      try:
        self.group.barrier()
      except reshard.Error as error:
        return type(error).__name__, str(error), self.group.lost()

    def die(self):
      import os

      os._exit(3)

  return [Rank.remote() for _ in range(size)]


def results(calls):
  return ray.get(list(calls), timeout=3 * TIMEOUT)


def test_actors_meet_by_name_and_refit():
  ranks = trainers_and_engines(3)
  for _ in range(2):  # another group over the same actor
    assert results(r.join.remote("by-name", i, 3) for i, r in enumerate(ranks)) == [[b"0", b"1", b"2"]] * 3
  served = results(r.refit.remote(7) for r in ranks)[2]
  assert b"".join(served.values()) == bytes([7]) * 64 + bytes([8]) * 64


def test_an_actor_of_ones_own_is_a_store_and_the_group_outlives_it():
  @ray.remote(num_cpus=0)
  class Mine:
    def __init__(self):
      self.values = {}

    def set(self, key, value):
      self.values[key] = value

    def get(self, key):
      return self.values[key]  # KeyError while there is none

  store, ranks = Mine.remote(), trainers_and_engines(2)
  assert results(r.join.remote(store, i, 2) for i, r in enumerate(ranks)) == [[b"0", b"1"]] * 2
  ray.kill(store)
  assert results(r.barrier.remote() for r in ranks) == [None, None]
  with pytest.raises(ray.exceptions.RayActorError):
    reshard.from_ray(store, rank=0, size=2, job="late")


def test_the_death_of_an_actor_is_named_on_the_others():
  ranks = trainers_and_engines(3)
  results(r.join.remote("death", i, 3) for i, r in enumerate(ranks))
  ranks[1].die.remote()
  for kind, text, lost in results(ranks[i].barrier.remote() for i in (0, 2)):
    assert kind == "AbortedError" and "rank 1" in text and lost == [1]


def test_a_rank_that_does_not_come_is_named():
  with pytest.raises(reshard.DeadlineError, match="rank 1 did not arrive"):
    reshard.from_ray("alone", rank=0, size=2, timeout=0.5)
  with pytest.raises(reshard.InvalidArgumentError, match="is no store"):
    reshard.from_ray(object(), rank=0, size=2)


def test_ray_must_be_initialised_and_is_not_loaded_before():
  code = """
import sys, reshard
assert "ray" not in sys.modules
try:
  reshard.from_ray(rank=0, size=1)
except reshard.InvalidArgumentError as error:
  assert "ray.init()" in str(error)
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=3 * TIMEOUT)
  assert done.returncode == 0, done.stderr
