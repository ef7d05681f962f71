# SPDX-License-Identifier: Apache-2.0
"""Protects: NeMo-RL's vLLM workers get every byte of what its policy holds, in the order in which its
synchronizer calls.

Real processes, torch and FSDP2. NeMo-RL itself is used if it can be imported (it is in no package
index); else `standins/nemo_rl` has the class and the function that an engine meets."""

import pathlib
import re

import frameworks
import pytest
from frameworks import Workers

import reshard

PAGE = pathlib.Path(__file__).parents[2] / "docs/nemo_rl.md"
POLICY, ROLLOUT = [0, 1], [2, 3]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
  options = {"release_after_refit": False, "timeout": 30.0}
  common = {"store": tmp_path_factory.mktemp("store") / "file", "bucket": 2000, "options": options}
  roles = [("policy", 0), ("policy", 1), ("vllm", 0), ("vllm", 1)]
  found = Workers("nemo_rl_process", [{"role": role, "rank": rank} | common for role, rank in roles])
  yield found
  found.close()


def connect(workers):
  """What CheckpointEngineWeightSynchronizer does before its first refit."""
  metadata = tuple(workers.call(POLICY + ROLLOUT, "prepare"))
  sizes = {"train_world_size": 2, "rollout_world_size": 2, "metadata": list(metadata)}
  calls = [{"worker_rank": rank, **sizes} for rank in range(2)]
  calls += [{"rollout_rank": rank, **sizes} for rank in range(2)]
  methods = ["init_policy_process_group"] * 2 + ["init_rollout_process_group"] * 2
  workers.call(POLICY + ROLLOUT, "execute", methods, calls)


def refit(workers, what="whole"):
  workers.ask(POLICY, "send", what)
  workers.ask(ROLLOUT, "receive")
  return workers.answers(POLICY + ROLLOUT)


def test_workers_hold_what_the_policy_has_after_every_step(workers):
  connect(workers)  # once for all refits
  for seed in (1, 2, 3):
    trained, same = workers.call(POLICY, "train", seed)
    assert trained == same and len(trained) == 10
    answers = refit(workers)
    assert all(fine for fine, _ in answers), answers
    assert all(held == trained for _, held in answers[2:])
  workers.call(POLICY + ROLLOUT, "execute", "finalize", {})


def test_the_group_may_be_released_after_each_refit(workers):
  for seed in (4, 5):
    connect(workers)
    trained, _ = workers.call(POLICY, "train", seed)
    assert [held for _, held in refit(workers)[2:]] == [trained, trained]
    workers.call(POLICY + ROLLOUT, "execute", "finalize", {})
  workers.ask([0], "send")
  (fine, (kind, message)) = workers.answers([0])[0]
  assert not fine and kind == "RuntimeError" and "prepare()" in message


@pytest.mark.parametrize("transport", ["gloo", "ucx"])
def test_transports_between_hosts_carry_the_same(workers, transport):
  found = reshard.find_transport(transport)
  if not found.available:
    pytest.skip(found.reason)
  workers.call(POLICY + ROLLOUT, "option", "_transport", transport)
  connect(workers)
  for seed in (11, 12):
    trained, _ = workers.call(POLICY, "train", seed)
    answers = refit(workers)
    assert all(fine for fine, _ in answers), answers
    assert all(held == trained for _, held in answers[2:])
  workers.call(POLICY + ROLLOUT, "execute", "finalize", {})
  workers.call(POLICY + ROLLOUT, "option", "_transport", "auto")


def test_policy_workers_that_differ_are_refused_everywhere(workers):
  connect(workers)
  answers = refit(workers, "other")
  assert all(not fine and "norm.weight" in message for fine, (_, message) in answers), answers


def test_the_lines_of_the_page_select_the_engine():
  frameworks.use("nemo_rl.utils.checkpoint_engines.base")
  from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine, create_checkpoint_engine

  blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
  assert len(blocks) == 3 and "refit_transport: nixl" in blocks[0]
  for block in blocks[1:]:
    (path,) = re.findall(r'refit_transport: "(.*)"', block)
    options = {name: eval(value.capitalize(), {}) for name, value in re.findall(r"^        (\w+): (\S+)$", block, re.MULTILINE)}
    options.pop("update_weights_bucket_memory_ratio", None)  # NeMo-RL makes a bucket_size of it
    engine = create_checkpoint_engine(path, bucket_size_bytes=1 << 20, engine_kwargs=options)
    assert isinstance(engine, CheckpointEngine)


def test_the_constructor_and_the_ranks_are_checked():
  frameworks.use("nemo_rl.utils.checkpoint_engines.base")
  from nemo_rl.utils.checkpoint_engines.base import create_checkpoint_engine

  backend = "reshard.nemo_rl:CheckpointEngine"
  with pytest.raises(ValueError, match="bucket_size 0"):
    create_checkpoint_engine(backend, bucket_size_bytes=0, engine_kwargs={})
  with pytest.raises(reshard.UnsupportedError, match="shard_expert_weights"):
    create_checkpoint_engine(backend, bucket_size_bytes=16, engine_kwargs={"shard_expert_weights": True})
  engine = create_checkpoint_engine(backend, bucket_size_bytes=16, engine_kwargs={})
  sizes = {"train_world_size": 1, "rollout_world_size": 1}
  for rank in (-1, 1):
    with pytest.raises(ValueError, match="worker_rank"):
      engine.init_policy_process_group(worker_rank=rank, metadata=[{}, {}], **sizes)
    with pytest.raises(ValueError, match="rollout_rank"):
      engine.init_rollout_process_group(rollout_rank=rank, metadata=[{}, {}], **sizes)
  with pytest.raises(ValueError, match="metadata of 1"):
    engine.init_policy_process_group(worker_rank=0, metadata=[{}], **sizes)
  engine.finalize()


def test_a_policy_worker_that_dies_leaves_an_error_and_the_old_weights(workers):  # the last test
  workers.call(ROLLOUT, "option", "_keep_old", True)
  connect(workers)
  trained, _ = workers.call(POLICY, "train", 6)
  assert all(fine for fine, _ in refit(workers))
  workers.call(POLICY, "train", 7)
  answers = refit(workers, "die")
  assert not any(fine for fine, _ in answers) and answers[1][1][0] == "died"
  assert all("the old weights stay" in message for _, (_, message) in answers[2:])
  assert workers.call(ROLLOUT, "holds") == [trained, trained]
