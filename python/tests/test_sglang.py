# SPDX-License-Identifier: Apache-2.0
"""Protects: the workers of an SGLang engine hold what their own load_weights() would have loaded of the
trainer's tensors, in the parameters that they had, after every update and no failed one.

SGLang's own code for updates and its Llama are used where they are installed, else a stand-in
(`sglang_process`). Trainers are real."""

import json
import multiprocessing
import os
import pathlib
import re
import types

import pytest
import sglang_process
import torch
from frameworks import Workers
from ranks import TIMEOUT
from torch_models import small_model

import reshard
from reshard import sglang

PAGE = pathlib.Path(__file__).parents[2] / "docs/sglang.md"


class World:
  """Two trainers under FSDP2, and an engine of two workers."""

  def __init__(self, folder):
    config = small_model().config
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder / "model")
    context = multiprocessing.get_context("spawn")
    self.tests, engine, self.workers = [], [], []
    for rank in range(sglang_process.TP):
      (test, mine), (handle, its) = context.Pipe(), context.Pipe()
      arguments = (mine, its, rank, folder / "engine", folder / "model")
      self.workers.append(context.Process(target=sglang_process.work, args=arguments, daemon=True))
      self.workers[-1].start()
      self.tests.append(test)
      engine.append(handle)
    common = {"store": folder / "trainer", "folder": folder / "model"}
    options = [{"rank": rank, "engine": engine if rank == 0 else None} | common for rank in (0, 1)]
    self.trainers = Workers("sglang_process", options)
    assert all(fine for fine, _ in map(self.answer, self.tests))

  def answer(self, pipe):
    assert pipe.poll(3 * TIMEOUT), "a worker of the engine hangs"
    return pipe.recv()

  def holds(self, whole):
    """Asserts what the workers hold, and in their own parameters."""
    for pipe in self.tests:
      pipe.send(whole)
    for fine, result in map(self.answer, self.tests):
      assert fine, result
      equal, all_of_them, same, filled = result
      assert equal == all_of_them and same and filled

  def behave(self, how):
    for pipe in self.tests:
      pipe.send(how)
    assert all(fine for fine, _ in map(self.answer, self.tests))

  def joined(self):
    """Whether each worker of the engine is in a trainer's group."""
    for pipe in self.tests:
      pipe.send("joined?")
    return [result for _, result in map(self.answer, self.tests)]

  def close(self):
    for pipe in self.tests:
      pipe.send(None)
    self.trainers.close()
    for process in self.workers:
      process.join(TIMEOUT)
      process.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  found = World(tmp_path_factory.mktemp("world"))
  yield found
  found.close()


def refit(world, seed, *version):
  whole, same = world.trainers.call([0, 1], "train", seed)
  assert whole == same
  versions = world.trainers.call([0, 1], "update", *version)
  world.holds(whole)
  return versions[0]


@pytest.mark.parametrize("route", ["local", "checkpoint"])
def test_workers_hold_what_their_loader_would_have_loaded(world, route):
  assert all(world.trainers.call([0, 1], "is_sharded"))
  first = max(world.trainers.call([0, 1], "start", {"route": route, "verify": True}))
  world.trainers.call([0], "calls")
  assert [refit(world, first + seed) for seed in (1, 2, 3)] == [first + 1, first + 2, first + 3]
  assert refit(world, 9, first + 40) == first + 40
  (calls,) = world.trainers.call([0], "calls")
  assert calls == [("begin", "target"), ("reshard.update", True), ("end",)] * 4
  world.trainers.call([0, 1], "close")


def test_adapters_are_merged_on_the_way(world):
  world.trainers.call([0, 1], "start_merging")
  for seed in (31, 32):
    world.trainers.call([0, 1], "train", seed)
    whole, same = world.trainers.call([0, 1], "merged")
    assert whole == same
    world.trainers.call([0, 1], "update")
    world.holds(whole)
  world.trainers.call([0, 1], "close")


def test_of_frozen_weights_nothing_is_sent_and_the_engine_keeps_its_own(world):
  world.trainers.call([0, 1], "start", {})
  assert refit(world, 40)
  before = world.trainers.call([0, 1], "train", 40)[0]
  world.trainers.call([0, 1], "close")
  patterns = ["model.layers.0.self_attn.q_proj.weight", "lm_head.*"]
  world.trainers.call([0, 1], "start", {"only": patterns, "route": "local"})
  after, _ = world.trainers.call([0, 1], "train", 41)
  world.trainers.call([0, 1], "update")
  # A worker's parameter that holds the query projection also holds key and value.
  sent = {"lm_head.weight", *(f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")}
  assert {name for name, *_ in after} > sent
  world.holds([new if new[0] in sent else old for old, new in zip(before, after, strict=True)])
  # In BF16, as the engine holds them.
  assert sum(world.trainers.call([0, 1], "sent")) == sum(len(data) // 2 for name, _, data in after if name in sent)
  world.trainers.call([0, 1], "close")
  world.trainers.ask([0, 1], "start", {"only": "model.layers.7.*"})
  for fine, error in world.trainers.answers([0, 1]):
    assert not fine and "no tensor's name matches 'model.layers.7.*'" in error[1]


def test_a_trainer_that_closes_has_the_workers_leave(world):
  world.trainers.call([0, 1], "start", {})
  assert world.joined() == [True, True]
  world.trainers.call([0], "calls")
  world.trainers.call([0, 1], "close")
  world.trainers.call([0, 1], "close")  # does nothing
  assert world.joined() == [False, False]
  (calls,) = world.trainers.call([0], "calls")
  assert calls == [("begin", "target"), ("reshard.leave", False), ("end",)]


def test_a_session_that_a_dead_trainer_left_open_is_taken_over(world):
  world.trainers.call([0], "leave_open")
  world.trainers.call([0, 1], "start", {})
  refit(world, 60)
  world.trainers.call([0, 1], "close")


def test_a_trainer_of_another_model_is_refused_before_anything_changes(world):
  world.trainers.ask([0, 1], "start", {}, "model.norm.weight")
  answers = world.trainers.answers([0, 1])
  said = "for 'model.norm.weight'" if sglang_process.REAL else "refuses the trainer's tensors"  # SGLang skips other names
  assert all(not fine and said in message for fine, (_, message) in answers), answers
  world.trainers.call([0, 1], "start", {})
  refit(world, 70)
  world.trainers.call([0, 1], "close")


def test_a_loader_that_cannot_be_followed_gets_whole_tensors(world):
  world.behave("odd")
  world.trainers.ask([0, 1], "start", {"route": "local"})
  refused = world.trainers.answers([0, 1])
  assert all(not fine and "layout of this engine" in message for fine, (_, message) in refused), refused
  world.trainers.call([0, 1], "start", {"route": "auto"})
  refit(world, 80)
  world.trainers.call([0, 1], "close")
  world.behave("")


def test_what_others_send_does_not_reach_the_trainer_that_has_joined(world):
  first = max(world.trainers.call([0, 1], "start", {}))
  world.trainers.call([0], "strangers")
  assert world.joined() == [True, True]
  assert refit(world, 81) == first + 1
  world.trainers.call([0, 1], "close")


def test_an_engine_that_balances_experts_gets_whole_tensors(world):
  """Its load_weights() asks at each update where experts are; a layout of this moment would go stale."""
  world.behave("balanced")
  world.trainers.ask([0, 1], "start", {"route": "local"})
  assert all(not fine and "layout of this engine" in message for fine, (_, message) in world.trainers.answers([0, 1]))
  world.trainers.call([0, 1], "start", {"route": "auto"})
  refit(world, 82)
  world.trainers.call([0, 1], "close")
  world.behave("fixed")


@pytest.mark.parametrize("how, why", [("asleep", "released the memory of 'model.norm.weight'"), ("grown", "have changed")])
def test_an_engine_that_is_not_what_it_was_keeps_its_weights(world, how, why):
  world.trainers.call([0, 1], "start", {})
  refit(world, 83)
  before = world.trainers.call([0, 1], "train", 83)[0]
  world.trainers.call([0, 1], "train", 84)
  world.behave(how)
  world.trainers.ask([0, 1], "update")
  answers = world.trainers.answers([0, 1])
  assert all(not fine and why in message for fine, (_, message) in answers), answers
  world.holds(before)
  world.behave("awake")
  world.trainers.call([0, 1], "start", {})
  refit(world, 85)
  world.trainers.call([0, 1], "close")


def test_the_program_of_the_page_updates_the_engine(world):
  (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
  whole, same = world.trainers.call([0, 1], "page", code)
  assert whole == same
  world.holds(whole)


def test_the_client_raises_what_the_engine_says():
  class Refuses:
    server_args = types.SimpleNamespace(tp_size=4, pp_size=2, dp_size=1)

    def begin_weight_update(self, selector):
      return False, "no memory"

  client = sglang.EngineClient(Refuses())
  assert client.get_world_size() == 8 and sglang.EngineClient(None, 3).get_world_size() == 3
  with pytest.raises(RuntimeError, match="SGLang: no memory"):
    client.start_weight_update()
  Refuses.server_args.dp_size = 2
  with pytest.raises(reshard.UnsupportedError, match="dp_size"):
    client.get_world_size()
  with pytest.raises(ValueError, match="pause="):
    sglang.Trainer(None, {}, engine=Refuses(), pause="wait")


def test_the_loader_takes_only_what_a_trainer_sends(caplog):
  module = torch.nn.Linear(2, 2)
  with pytest.raises(ValueError, match=r"no tensor 'model\.weight'"):
    sglang.load(module, [("model.weight", torch.zeros(2))])
  update = torch.tensor(list(json.dumps({"version": 3}).encode()), dtype=torch.uint8)
  sglang.load(module, [("reshard.update", update)])  # an error here would end the engine
  assert "no trainer has joined" in caplog.text


def test_the_line_of_the_page_names_the_loader():
  (path,) = set(re.findall(r"--custom-weight-loader (\S+)$", PAGE.read_text(), re.MULTILINE))
  assert path == sglang.LOADER == f"{sglang.load.__module__}.{sglang.load.__name__}"
  assert os.path.basename(sglang.__file__) == "sglang.py"


def test_a_trainer_that_dies_leaves_the_old_weights_and_a_working_engine(world):
  first = max(world.trainers.call([0, 1], "start", {}))
  refit(world, 90)
  before = world.trainers.call([0, 1], "train", 90)[0]
  world.trainers.call([0, 1], "train", 91)
  world.trainers.ask([0], "update")
  world.trainers.ask([1], "dies")
  (fine, (kind, message)), (_, (died, _)) = world.trainers.answers([0, 1])
  assert not fine and died == "died" and kind == "AbortedError", message
  world.holds(before)
  ((whole, version),) = world.trainers.call([0], "start_alone")
  assert version == first + 2
  world.holds(whole)
