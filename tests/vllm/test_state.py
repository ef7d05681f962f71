# SPDX-License-Identifier: Apache-2.0
"""Protects: a worker takes no update that its engine's state of the moment would make wrong. Models and configs are
stand-ins for those of engines with several GPUs; the classes of vLLM that hold the state are its own."""

import types

import pytest
import reshard
import torch
from reshard.engines import state as engine_state
from reshard.vllm import state, worker
from vllm.distributed.eplb.eplb_state import EplbLayerState


class Layer(torch.nn.Module):
  def __init__(self):
    super().__init__()
    self.weight = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    self.register_buffer("_expert_map", torch.tensor([0, 1, -1, -1]))


def config(**more):
  parallel = {"world_size": 1, "rank": 0, "tensor_parallel_size": 1, "enable_eplb": False} | more
  model = types.SimpleNamespace(enable_sleep_mode=parallel.pop("sleep", False))
  return types.SimpleNamespace(parallel_config=types.SimpleNamespace(**parallel), model_config=model)


def test_an_engine_that_balances_experts_is_refused():
  for update in (False, True):
    state.check(Layer(), config(), in_place=False, update=update)
    with pytest.raises(reshard.UnsupportedError, match="enable_eplb: the expert load balancer moves"):
      state.check(Layer(), config(enable_eplb=True), in_place=False, update=update)
    layer = Layer()
    layer.eplb_state = EplbLayerState()
    state.check(layer, config(), in_place=False, update=update)
    layer.eplb_state.logical_to_physical_map = torch.tensor([[0], [1]])
    with pytest.raises(reshard.UnsupportedError, match="enable_eplb"):
      state.check(layer, config(), in_place=False, update=update)


def test_a_sleeping_engine_takes_no_update(monkeypatch):
  state.check(Layer(), config(sleep=True), in_place=False, update=True)
  with pytest.raises(reshard.UnsupportedError, match="in_place=True needs memory that stays"):
    state.check(Layer(), config(sleep=True), in_place=True, update=False)
  monkeypatch.setattr(engine_state, "unmapped", lambda tensors: next(n for n, _ in tensors))
  state.check(Layer(), config(sleep=True), in_place=False, update=False)
  with pytest.raises(reshard.UnsupportedError, match="sleeps, without memory for 'weight': wake it up"):
    state.check(Layer(), config(sleep=True), in_place=False, update=True)


@pytest.mark.parametrize(
  ("change", "named"),
  [
    (lambda layer, of: layer._expert_map.copy_(torch.tensor([-1, 0, 1, -1])), "the placement of its experts"),
    (lambda layer, of: setattr(of.parallel_config, "tensor_parallel_size", 2), "the sizes of its parallel groups"),
    (lambda layer, of: layer.register_buffer("more", torch.zeros(1)), "names, shapes and dtypes of its tensors"),
    (lambda layer, of: setattr(layer.weight, "data", torch.zeros(4, 3)), "names, shapes and dtypes of its tensors"),
  ],
)
def test_what_has_changed_since_a_trainer_joined_is_named(change, named):
  layer, of = Layer(), config()
  before = state.placement(layer, of)
  layer.weight.data.fill_(7)
  assert engine_state.difference(before, state.placement(layer, of)) == ""
  change(layer, of)
  assert named in engine_state.difference(before, state.placement(layer, of))


class Joined:
  """The link to the trainer that a worker has."""

  def __init__(self):
    self.invitation = types.SimpleNamespace(job="mine", in_place=False)
    self.closed = False

  def close(self):
    self.closed = True


@pytest.fixture
def engine():
  """A worker engine of one worker that has joined a trainer."""
  made = object.__new__(worker.WorkerEngine)
  made._vllm_config, made._own_model, made._device = config(), Layer(), torch.device("cpu")
  made._invitations, made._torn, made._guard = worker.Invitations(), "", None
  made._models, made._adapters, made._arrived, made._draft = [], None, None, None
  made._live = made._refitted = made._drafting = False
  made._all = lambda mine: mine
  made._link = Joined()
  return made


def test_an_invitation_of_another_release_ends_nothing(engine):
  for said in ({"protocol": 1}, {"protocol": 4, "deadline": 1e9}, {}):
    with pytest.raises(reshard.InvalidArgumentError):
      engine.init_transfer_engine(engine.parse_init_info(said))
  assert not engine._link.closed


def test_an_update_of_another_trainer_ends_nothing(engine):
  with pytest.raises(RuntimeError, match="another trainer has joined"):
    engine.update_weights({"version": 3, "job": "another"})
  assert not engine._link.closed and engine._link is not None
