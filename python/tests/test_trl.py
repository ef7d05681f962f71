# SPDX-License-Identifier: Apache-2.0
"""Protects: reshard.trl takes the place of TRL's own synchronisation with servers that ask for reshard, and with no others.

A stand-in has the classes and attributes of TRL that it meets; tests/trl has TRL itself."""

import inspect
import pathlib
import re
import sys
import types

import pytest

import reshard

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

PAGE = pathlib.Path(__file__).parents[2] / "docs/trl.md"


class Client:
  """A server of a back end."""

  base_url = "http://127.0.0.1:1"

  def __init__(self, backend):
    self.config, self.opened = {"weight_transfer_config": backend and {"backend": backend}}, 0

  def get_server_info(self):
    return self.config

  def init_communicator(self, device=0):
    self.opened += 1


class Generation:
  """What TRL's VLLMGeneration has."""

  def __init__(self, model, backend="reshard", mode="server", **state):
    self.model, self.mode, self.vllm_client, self.synced = model, mode, Client(backend), 0
    state = types.SimpleNamespace(**{"fsdp_plugin": None, "deepspeed_plugin": None} | state)
    self.accelerator = types.SimpleNamespace(is_main_process=True, process_index=0, num_processes=1, state=state)
    self.vllm_client.init_communicator()

  def sync_weights(self):
    self.synced += 1


class Trainer:
  """Of reshard.vllm, as far as it is called."""

  made = []

  def __init__(self, layout, tensors, **options):
    self.layout, self.tensors, self.options, self.version, self.closed, self.fails = layout, tensors, options, 0, False, False
    self.made.append(self)

  def update(self):
    if self.fails:
      raise reshard.AbortedError("an engine died")
    self.version += 1
    return self.version

  def close(self):
    self.closed = True


@pytest.fixture
def trl(monkeypatch):
  """The module under test, in a process with a stand-in for TRL."""
  dpo = type("OnlineDPOTrainer", (Generation,), {"_move_model_to_vllm": Generation.sync_weights})
  classes = {
    "trl": {},
    "trl.generation": {},
    "trl.generation.vllm_client": {"VLLMClient": type("VLLMClient", (Client,), {"init_communicator": Client.init_communicator})},
    "trl.generation.vllm_generation": {
      "VLLMGeneration": type("VLLMGeneration", (Generation,), {"sync_weights": Generation.sync_weights})
    },
    "trl.experimental": {},
    "trl.experimental.online_dpo": {"OnlineDPOTrainer": dpo},
  }
  for name, members in classes.items():
    module = types.ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)
  import reshard.trl

  signature = inspect.signature(reshard.vllm.Trainer.__init__)
  monkeypatch.setattr(Trainer.__init__, "__signature__", signature, raising=False)
  monkeypatch.setattr(reshard.vllm, "Trainer", Trainer)
  monkeypatch.setattr(reshard.trl, "_settings", None)
  Trainer.made = []
  return reshard.trl


def generation(**more):
  import transformers

  sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 16}
  config = transformers.LlamaConfig(**sizes, dtype="float32")
  made = sys.modules["trl.generation.vllm_generation"].VLLMGeneration
  return made(transformers.AutoModelForCausalLM.from_config(config), **more)


def test_each_sync_is_an_update_of_one_trainer(trl):
  seen = []
  trl.install(on_update=seen.append, verify=True)
  owner = generation()
  for _ in range(3):
    owner.sync_weights()
  (trainer,) = Trainer.made
  assert owner.synced == 0 and trainer.version == 3 and [one.step for one in seen] == [0, 1, 2]
  assert trainer.options["verify"] is True and trainer.options["merge"] is None
  held = dict(owner.model.named_parameters())
  assert {name: t.data_ptr() for name, t in trainer.tensors.items()} == {name: t.data_ptr() for name, t in held.items()}
  assert {t.name for t in trainer.layout.local(0)} == set(held)


def test_other_servers_are_left_to_trl(trl):
  trl.install()
  client = sys.modules["trl.generation.vllm_client"].VLLMClient
  for backend, opened in (("reshard", 0), ("nccl", 1), (None, 1)):
    made = client(backend)
    made.init_communicator(device=0)
    assert made.opened == opened
  for more in ({"backend": "nccl"}, {"mode": "colocate"}):
    owner = generation(**more)
    owner.sync_weights()
    assert owner.synced == 1 and not Trainer.made


def test_after_an_error_the_next_sync_joins_anew(trl):
  trl.install()
  owner = generation()
  owner.sync_weights()
  Trainer.made[0].fails = True
  with pytest.raises(reshard.AbortedError, match="an engine died"):
    owner.sync_weights()
  assert Trainer.made[0].closed
  owner.sync_weights()
  assert len(Trainer.made) == 2 and Trainer.made[1].version == 1


def test_parameters_that_moved_are_an_error_that_names_one(trl):
  trl.install()
  owner = generation()
  owner.sync_weights()
  owner.model.lm_head.weight.data = owner.model.lm_head.weight.data.clone()
  with pytest.raises(reshard.UnsupportedError, match=r"'lm_head\.weight' is in other memory"):
    owner.sync_weights()


def test_flat_parameters_are_refused(trl):
  trl.install()
  for state, why in (
    ({"fsdp_plugin": types.SimpleNamespace(fsdp_version=1)}, "fsdp_version: 2"),
    ({"deepspeed_plugin": types.SimpleNamespace(zero_stage=3)}, "use FSDP2"),
  ):
    with pytest.raises(reshard.UnsupportedError, match=why):
      generation(**state).sync_weights()
  generation(deepspeed_plugin=types.SimpleNamespace(zero_stage=2)).sync_weights()


def test_a_process_that_ends_its_generation_leaves_the_group(trl):
  trl.install()
  owner = generation()
  owner.sync_weights()
  del owner
  assert Trainer.made[0].closed


def test_the_block_of_the_page_runs(trl):
  (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
  exec(compile(block, "docs/trl.md", "exec"), {})
  client = sys.modules["trl.generation.vllm_client"].VLLMClient("reshard")
  client.init_communicator()
  assert client.opened == 0


def test_options_are_those_of_the_page(trl):
  with pytest.raises(reshard.InvalidArgumentError, match="no option verfy; there are adapters, check, "):
    trl.install(verfy=True)
  taken = set(inspect.signature(trl.install).parameters) | set(inspect.signature(reshard.vllm.Trainer.__init__).parameters)
  rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+)", PAGE.read_text(), re.MULTILINE)
  named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
  assert {"verify", "check", "timeout", "on_update", "pause"} <= named and named <= taken
