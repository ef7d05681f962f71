# SPDX-License-Identifier: Apache-2.0
"""Protects: the workers of an SGLang engine hold what their own load_weights() would have loaded of the
trainer's tensors, in the parameters that they had, after every update and no failed one.

SGLang's own code for updates and its Llama are used where they are installed, else a stand-in
(`sglang_process`). Trainers are real."""

import importlib
import json
import pathlib
import re
import types

import pytest
import sglang_process
import sglang_served
import torch
from sglang_world import Served, World
from torch_models import small_model

import reshard
from reshard import lora, sglang
from reshard.sglang import client

PAGE = pathlib.Path(__file__).parents[2] / "docs/sglang.md"


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


@pytest.mark.parametrize("snapshot", [False, True])
def test_weights_arrive_while_the_engine_serves_and_are_taken_when_the_trainer_asks(world, snapshot):
  first = max(world.trainers.call([0, 1], "start", {"verify": True, "snapshot": snapshot}))
  old, _ = world.trainers.call([0, 1], "train", 51)
  world.trainers.call([0, 1], "update")
  for seed in (52, 54):
    new, _ = world.trainers.call([0, 1], "train", seed)
    world.trainers.call([0], "calls")
    assert world.trainers.call([0, 1], "begin") in ([snapshot] * 2, [True] * 2)
    world.trainers.call([0, 1], "train", seed + 1)  # the trainer writes what it sent
    world.holds(old)
    assert world.trainers.call([0, 1], "finish") == [first + 2 + (seed - 52) // 2] * 2
    world.holds(new)
    (calls,) = world.trainers.call([0], "calls")
    assert calls == [("begin", "target"), ("reshard.update", False), ("end",), ("begin", "target"), ("reshard.update", True), ("end",)]
    old = new
  newest, _ = world.trainers.call([0, 1], "train", 56)
  world.trainers.call([0, 1], "update")
  world.holds(newest)
  world.trainers.call([0, 1], "close")


def test_a_trainer_that_fails_in_the_background_leaves_the_old_weights(world):
  world.trainers.call([0, 1], "start", {})
  old, _ = world.trainers.call([0, 1], "train", 61)
  world.trainers.call([0, 1], "update")
  world.trainers.call([0, 1], "train", 62)
  world.trainers.call([1], "fails_at", "check")
  world.trainers.call([0, 1], "begin")
  for rank in (0, 1):
    with pytest.raises(AssertionError, match="the trainer has had enough"):
      world.trainers.call([rank], "finish")
  world.trainers.call([1], "fails_at", None)
  world.trainers.call([0, 1], "close")
  world.holds(old)
  world.trainers.call([0, 1], "start", {})
  new, _ = world.trainers.call([0, 1], "train", 63)
  world.trainers.call([0, 1], "update")
  world.holds(new)
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


def programs():
  return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_program_of_the_page_updates_the_engine(world):
  code, _ = programs()
  whole, same = world.trainers.call([0, 1], "page", code)
  assert whole == same
  world.holds(whole)


def test_the_client_raises_what_the_engine_says():
  class Refuses:
    server_args = types.SimpleNamespace(tp_size=4, pp_size=2, dp_size=1)

    def begin_weight_update(self, selector):
      return False, "no memory"

  made = sglang.EngineClient(Refuses())
  assert made.get_world_size() == 8 and sglang.EngineClient(None, 3).get_world_size() == 3
  with pytest.raises(RuntimeError, match="SGLang: no memory"):
    made.start_weight_update()
  Refuses.server_args.dp_size = 2
  with pytest.raises(reshard.UnsupportedError, match="dp_size"):
    made.get_world_size()
  with pytest.raises(ValueError, match="pause="):
    sglang.Trainer(None, {}, engine=Refuses(), pause="wait")
  with pytest.raises(ValueError, match="adapters= of 'default': a reshard.sglang.Adapter, not "):
    sglang.Trainer(None, {}, engine=Refuses(), adapters={"default": lora.Adapter("/dev/shm/policy")})
  twice = dict.fromkeys("ab", sglang.Adapter("policy"))
  with pytest.raises(ValueError, match="adapters= names 'policy' twice"):
    sglang.Trainer(None, {}, engine=Refuses(), adapters=twice)


def test_the_loader_takes_only_what_a_trainer_sends(caplog):
  module = torch.nn.Linear(2, 2)
  with pytest.raises(ValueError, match=r"no tensor 'model\.weight'"):
    sglang.load(module, [("model.weight", torch.zeros(2))])
  update = torch.tensor(list(json.dumps({"version": 3}).encode()), dtype=torch.uint8)
  sglang.load(module, [("reshard.update", update)])  # an error here would end the engine
  assert "no trainer has joined" in caplog.text


def test_the_line_of_the_page_names_the_loader():
  (path,) = set(re.findall(r"--custom-weight-loader (\S+)$", PAGE.read_text(), re.MULTILINE))
  module, _, function = path.rpartition(".")  # SGLang's dynamic_import
  assert path == client.LOADER and getattr(importlib.import_module(module), function) is sglang.load


@pytest.fixture
def served(world, tmp_path):
  made = []

  def make(*arguments, **named):
    made.append(Served(world, tmp_path, *arguments, **named))
    return made[-1]

  yield make
  for one in made:
    one.close()


def test_adapters_and_weights_are_one_version(served):
  it = served(adapters=("default", "second"))
  it.holds()
  it.start(only=[lora.NAMES])
  for seed in (1, 2):
    _, _, it.folders = it.train(seed)
    small = it.update()
    it.holds()
  it.world.trainers.call([0, 1], "close")
  it.start()
  for seed in (3, 4):
    it.whole, _, it.folders = it.train(seed)
    large = it.update()
    it.holds()
    version, _ = it.world.trainers.call([0, 1], "at")
    assert it.world.trainers.call([0], "told") == [str(version) if sglang_process.REAL else None]
  assert 0 < small < large
  # A closed trainer leaves what it has brought; the engine's next request reads nothing of older files.
  it.world.trainers.call([0, 1], "close")
  it.holds()


def test_the_page_s_program_of_adapters_and_draft_models_updates_both(served):
  it = served("eagle")
  it.start()
  it.whole, it.draft, it.folders = it.train(6)
  it.world.trainers.call([0, 1], "close")
  it.world.trainers.call([0, 1], "page_of_adapters", programs()[1])
  it.holds()


def test_one_of_several_adapters_is_updated_alone(served):
  it = served(adapters=("default", "second"))
  it.start(only=["*.default.*"])
  new = it.train(5)[2]
  it.update()
  it.folders = {"policy": new["policy"], "critic": it.folders["critic"]}
  it.holds()


BASE = "base_model.model.model.layers.1.self_attn"


@pytest.mark.parametrize(
  "why, changed, config",
  [
    ("rank 9, the engine takes at most 8", "ranks", {"r": 9}),
    ("has rank 4, the config of the adapter 'policy' says 3", {}, {"r": 3}),
    ("has rank 3, the config of the adapter 'policy' says 4", {f"{BASE}.q_proj.lora_A.default.weight": (3, 24)}, {}),
    ("use_rslora or alpha_pattern", {}, {"use_rslora": True}),
    ("use_rslora or alpha_pattern", {}, {"alpha_pattern": {"o_proj": 5}}),
    ("has modules", {}, {"target_modules": ["q_proj", "router"]}),
    ("SGLang takes a list", {}, {"target_modules": ".*_proj"}),
    ("has no target_modules", {}, {"target_modules": None}),
    ("does not match weight", {f"{BASE}.o_proj.lora_B.default.weight": (23, 4)}, {}),
    ("refuses the adapter 'policy'", {f"{BASE}.{x}_proj.lora_{k}.default.weight": None for x in "kv" for k in "AB"}, {}),
    ("SGLang would drop", {"base_model.model.lm_head.lora_A.default.weight": (4, 24), "base_model.model.lm_head.lora_B.default.weight": (101, 4)}, {}),
    ("refuses the adapter 'policy'", {f"{BASE.replace('1', '7')}.o_proj.lora_A.default.weight": (4, 24)}, {}),
    ("no such module has adapters", {f"{BASE}.other.o_proj.lora_A.default.weight": (4, 24), f"{BASE}.other.o_proj.lora_B.default.weight": (24, 4)}, {}),
    ("into one buffer", {"base_model.model.tower.layers.1.self_attn.o_proj.lora_A.default.weight": (4, 24)}, {}),
  ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused_before_anything_changes(served, why, changed, config):
  it = served()
  said = {key: value for key, value in (sglang_served.ADAPTERS["default"][1] | config).items() if value is not None}
  if changed == "ranks":
    changed = {n: tuple(9 if i == 4 else i for i in s) for n, s in sglang_served.factor_shapes("default", small_model().config).items()}
  it.refused(why, changed | {"configs": {"default": said}}, only=[lora.NAMES])
  it.holds()


def test_an_engine_without_the_adapter_refuses_it(served):
  plain = served("eagle", adapters=())
  plain.refused("takes no adapters", kind="")
  other = served(adapters=("second",))
  other.adapters = {"policy": "default"}
  other.refused("has not loaded the adapter 'policy'; its adapters are 'critic'")


@pytest.mark.parametrize("how, why", [("unload", "has unloaded the adapter 'policy'"), ("make", "no memory is left")])
def test_an_engine_that_does_not_take_new_factors_keeps_all_of_the_old_version(served, how, why):
  it = served()
  it.start()
  it.whole, _, it.folders = it.train(11)
  it.update()
  it.train(12)
  it.tell("hurt", how)
  it.world.trainers.ask([0, 1], "update")
  answers = it.world.trainers.answers([0, 1])
  if how == "make":
    it.tell("hurt", "heal")
    it.holds()
    it.start()
    it.whole, _, it.folders = it.train(13)
    it.update()
    it.holds()
  assert all(not fine and why in error[1] for fine, error in answers), answers


def test_a_trainer_that_fails_leaves_adapters_and_draft_models_as_they_are(served):
  it = served("eagle")
  it.start()
  it.whole, it.draft, it.folders = it.train(14)
  it.update()
  for phase in ("transfer", "check"):
    it.train(15)
    it.world.trainers.call([1], "fails_at", phase)
    it.world.trainers.ask([0, 1], "update")
    answers = it.world.trainers.answers([0, 1])
    assert all(not fine and "had enough" in error[1] for fine, error in answers), answers
    it.holds()
    it.world.trainers.call([1], "fails_at", None)
    it.start()
  it.whole, it.draft, it.folders = it.train(16)
  it.update()
  it.holds()


def test_factors_that_cannot_be_put_into_their_slots_tear_the_engine(served):
  it = served()
  it.start()
  it.train(17)
  it.tell("hurt", "move")
  it.world.trainers.ask([0, 1], "update")
  answers = it.world.trainers.answers([0, 1])
  assert all(not fine and "could not be loaded" in error[1] for fine, error in answers), answers
  assert it.world.joined() == [False, False]


KINDS = sglang_served.DRAFTS if sglang_process.REAL else ("eagle",)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_model_and_its_target_are_one_version(served, kind):
  it = served(kind, adapters=())
  it.start()
  it.world.trainers.call([0], "calls")
  for seed in (21, 22):
    it.whole, it.draft, _ = it.train(seed)
    together = it.update()
    it.holds()
  assert it.world.trainers.call([0], "calls")[0] == [("begin", "all"), ("reshard.update", True), ("end",)] * 2
  it.world.trainers.call([0, 1], "close")
  it.start(only=["model.*", "lm_head.*"], route="local")
  it.whole, _, _ = it.train(23)
  alone = it.update()
  it.holds()
  it.world.trainers.call([0, 1], "close")
  it.start(only=["draft:*"], route="local")
  it.draft = it.train(24)[1]
  own = it.update()
  it.holds()
  assert together == alone + own and own > 0


def test_a_trainer_without_a_draft_model_leaves_it_as_it_is(served):
  it = served(KINDS[0], adapters=("default",))
  it.start()
  it.whole, it.draft, it.folders = it.train(25)
  it.update()
  it.world.trainers.call([0, 1], "close")
  it.kind = ""
  it.start()
  it.whole, _, it.folders = it.train(26)
  it.update()
  it.holds()


@pytest.mark.parametrize(
  "why, changed, how",
  [
    ("takes none of the trainer's tensors for '", {"draft:fc.weight": None}, None),
    ("refuses the trainer's tensors", {"draft:fc.weight": (40, 40)}, None),
    ("takes none of the trainer's tensors for '", {}, "hot"),  # --speculative-token-map copies rows of the head
    ("the draft model shares ", {}, "odd draft"),
    *([("the draft model shares ", {"draft:d2t": (sglang_served.HOT,)}, "eagle3")] if sglang_process.REAL else []),
  ],
)
def test_a_draft_model_that_does_not_fit_is_refused_before_anything_changes(served, why, changed, how):
  it = served(how if how in KINDS else "eagle", adapters=())
  if how is not None:
    it.tell("hurt", how)
  it.refused(why, changed)
  if how not in ("hot", "odd draft"):
    it.holds()


def test_an_engine_without_a_draft_model_refuses_one(served):
  served("none", adapters=()).refused("the engine has none with weights", kind="eagle")


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


def test_an_update_brings_several_engines_to_one_version(tmp_path):
  several = World(tmp_path, engines=2)
  try:
    first = max(several.trainers.call([0, 1], "start", {"verify": True}))
    assert several.joined() == [True] * 4
    for seed in (1, 2):
      assert refit(several, seed) == first + seed
    new, _ = several.trainers.call([0, 1], "train", 3)
    several.trainers.call([0, 1], "begin")
    several.trainers.call([0, 1], "finish")
    several.holds(new)
    several.trainers.call([0, 1], "close")
    assert several.joined() == [False] * 4
  finally:
    several.close()
