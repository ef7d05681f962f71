# SPDX-License-Identifier: Apache-2.0
"""Protects: verl's rollouts get every byte of what its actors hold, in the order in which verl calls.

Real processes, torch, FSDP2 and transformers. verl itself is used if it is installed
(`pip install verl`); else `standins/verl` has the two classes that an engine meets."""

import importlib
import os
import pathlib
import re
import sys

import frameworks
import pytest
from frameworks import Workers

PAGE = pathlib.Path(__file__).parents[2] / "docs/verl.md"
ACTORS, ROLLOUTS = [0, 1], [2, 3]
BUCKET = 6000  # bytes: many buckets, and tensors that are larger


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
  common = {"store": tmp_path_factory.mktemp("store") / "file", "bucket": BUCKET, "options": {"timeout": 30.0}}
  roles = [("actor", 0), ("actor", 1), ("rollout", 0), ("rollout", 1)]
  found = Workers("verl_process", [{"role": role, "rank": rank} | common for role, rank in roles])
  yield found
  found.close()


def lines_of_the_page():
  """The back ends and modules of docs/verl.md."""
  lines = re.findall(r"backend=(\w+)\n\S+custom_backend_module=(\S+)\n", PAGE.read_text())
  assert [backend for backend, _ in lines] == ["reshard", "delta_sharded"]
  return lines


def connect(workers, rollouts=ROLLOUTS):
  """What verl's CheckpointEngineManager.build_process_group() does."""
  ranks = ACTORS + rollouts
  metadata = workers.call(ranks, "execute", "prepare", {})
  (built,) = workers.call([0], "topology", len(ACTORS), len(rollouts), tuple(metadata))
  calls = []
  for kwargs, size in zip(built, (len(ACTORS), len(rollouts)), strict=True):
    assert all(isinstance(v, list) and len(v) == size for v in kwargs.values())
    calls += [{name: values[i] for name, values in kwargs.items()} for i in range(size)]
  workers.call(ranks, "execute", "init_process_group", calls)
  return ranks


def update(workers, what, step, rollouts=ROLLOUTS):
  """What update_weights() does: what each worker answered."""
  ranks = connect(workers, rollouts)
  workers.ask(ACTORS, "send", what, step)
  workers.ask(rollouts, "receive", step)
  answers = workers.answers(ranks)
  if all(fine for fine, _ in answers):
    workers.call(ranks, "execute", "finalize", {})
  return answers


def updated(workers, what, step, rollouts=ROLLOUTS):
  """Updates after a training step, and compares every byte on every rollout."""
  trained, same = workers.call(ACTORS, "train", step or 77)
  assert trained == same and len(trained) == 24
  answers = update(workers, what, step, rollouts)
  assert all(fine for fine, _ in answers), answers
  for _, received in answers[len(ACTORS) :]:
    assert received == trained
    assert list(received) == list(trained)
  return [result for _, result in answers]


def test_the_lines_of_the_page_register_the_engine(workers):
  frameworks.use("verl.checkpoint_engine.base")
  base = importlib.import_module("verl.checkpoint_engine.base")
  for backend, module in lines_of_the_page():
    importlib.import_module(module)  # as verl imports it
    engine = base.CheckpointEngineRegistry.new(backend, bucket_size=1 << 20)
    assert isinstance(engine, base.CheckpointEngine) and engine.wire_format == "named_tensors"
    assert type(engine).__module__ == "reshard.verl"
  assert len(set(workers.call([0, 1, 2, 3], "real"))) == 1


def test_gathered_tensors_arrive_after_every_step(workers):
  groups = []
  for step in (3, 4, 9):
    asked = updated(workers, "whole", step)[0]
    assert asked == ["whole"]
    groups += workers.call(ACTORS + ROLLOUTS, "group")
  assert len({name for name, _ in groups}) == 1  # made once
  assert [version for _, version in groups[::4]] == [3, 4, 9]


def test_shards_arrive_without_being_gathered(workers):
  for step in (20, 21):
    asked = updated(workers, "engine", step)[0]
    assert "whole" not in asked and "shards" in asked
  updated(workers, "whole", 22)  # the same group takes either


def test_steps_may_be_missing_or_go_back(workers):
  (before, *_) = workers.call([0], "group")
  updated(workers, "whole", None)
  updated(workers, "engine", 1)  # resumed from an older checkpoint
  (after, *_) = workers.call([0], "group")
  assert after == (before[0], before[1] + 2)


def test_rollouts_come_and_go(workers):
  before = workers.call([2], "group")
  updated(workers, "whole", 40, [2])
  assert workers.call([2], "group")[0][0] != before[0][0]
  updated(workers, "engine", 41, [2, 3])
  updated(workers, "engine", 42, [3, 2])


@pytest.mark.parametrize(
  ("what", "said"),
  [("fail", "no such weight"), ("other", "trainer 0 sends")],
)
def test_an_error_of_one_actor_is_one_of_all_workers(workers, what, said):
  answers = update(workers, what, 50)
  assert not any(fine for fine, _ in answers)
  assert all(said in message for _, (_, message) in answers), answers
  assert {kind for _, (kind, _) in answers[2:]} <= {"TornError", "InvalidArgumentError", "AbortedError"}
  for kind, message in [answer for _, answer in answers[2:]]:
    count = int(message.split()[0]) if kind == "TornError" else 0
    assert count or "the old weights stay" in message
  updated(workers, "whole", 51)  # and the next update makes a new group


def test_a_rollout_that_cannot_load_ends_the_update(workers):
  connect(workers)
  workers.ask(ACTORS, "send", "whole", 60)
  workers.ask([2], "refuse", 60)
  workers.ask([3], "receive", 60)
  answers = workers.answers([0, 1, 2, 3])
  assert not any(fine for fine, _ in answers)
  assert "cannot load this" in answers[2][1][1]
  updated(workers, "engine", 61)


def test_workers_of_different_steps_are_refused(workers):
  ranks = connect(workers)
  workers.ask(ACTORS, "send", "whole", 70)
  workers.ask(ROLLOUTS, "receive", 71)
  answers = workers.answers(ranks)
  assert all(not fine and "step 71" in message for fine, (_, message) in answers), answers


@pytest.mark.parametrize("which", [0, 1])
def test_verls_own_manager_updates_its_workers_under_ray(tmp_path, which):
  ray = pytest.importorskip("ray", reason="needs verl 0.9.1, ray and what verl imports")
  if not frameworks.use("verl.checkpoint_engine.base"):
    pytest.skip("needs verl 0.9.1, ray and what verl imports")
  verl_ray = pytest.importorskip("verl_ray", exc_type=ImportError)
  path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
  ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
  try:
    trainer = verl_ray.Trainer(str(tmp_path / "store"), *lines_of_the_page()[which], BUCKET)
    for step in (1, 2, 5):
      if step == 5:  # a replica goes
        trainer.manager.remove_replicas(trainer.replicas[:1])
      trained, received = trainer.step(step)
      assert len(received) == (1 if step == 5 else 2)
      assert all(found == trained and at == step for found, at in received)
    assert trainer.replicas[1].calls[-1] == "resume_generation"
    trainer.close()
  finally:
    ray.shutdown()


def test_an_actor_that_dies_leaves_an_error_and_not_a_hang(workers):  # and no actor: the last test
  workers.call([0, 1, 2, 3], "set", {"_verify": True})
  workers.call([3], "set", {"_keep_old": True})
  updated(workers, "engine", 80)
  for step in (81, 82):
    updated(workers, "engine", step)
  answers = update(workers, "die", 83)
  assert answers[1][1][0] == "died" and not any(fine for fine, _ in answers)
  (torn, torn_message), (kept, kept_message) = (answer for _, answer in answers[2:])
  assert torn == "TornError" and "weights of two versions" in torn_message
  assert kept == "AbortedError" and "the old weights stay" in kept_message
  (some, works), (none, also) = workers.call(ROLLOUTS, "seen")
  assert some > 0 and none == 0 and not works and not also
