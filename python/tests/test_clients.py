# SPDX-License-Identifier: Apache-2.0
"""Law: a call of several engines reaches each, ends when all have answered, and fails as soon as one does."""

import threading

import pytest

from reshard.engines.clients import Clients
from ranks import TIMEOUT


class Engine:
  def __init__(self, workers, more=()):
    self.calls, self.workers = [], workers
    self.waits, self.fails = threading.Event(), None
    self.waits.set()
    for name in more:
      setattr(self, name, lambda *arguments: self.calls.append(arguments))

  def get_world_size(self):
    return self.workers

  def init_weight_transfer_engine(self, init_info):
    self.calls.append(init_info)

  def update_weights(self, update_info):
    assert self.waits.wait(TIMEOUT)
    self.calls.append(update_info)
    if self.fails:
      raise self.fails


def test_each_engine_is_invited_by_its_number():
  engines = [Engine(2), Engine(1), Engine(4)]
  clients = Clients(engines)
  assert clients.sizes() == [2, 1, 4] and len(clients) == 3
  clients.init_weight_transfer_engine({"job": "x"})
  assert [engine.calls for engine in engines] == [[{"job": "x", "engine": i}] for i in range(3)]


def test_the_first_error_is_raised_while_others_still_wait():
  engines = [Engine(1), Engine(1)]
  clients = Clients(engines)
  engines[0].waits.clear()
  engines[1].fails = RuntimeError("refused")
  with pytest.raises(RuntimeError, match="refused"):
    clients.update_weights(1)
  assert engines[0].calls == []
  engines[0].waits.set()
  engines[1].fails = None
  clients.update_weights(2)  # behind the one that waited
  assert engines[0].calls == [1, 2] and engines[1].calls == [1, 2]


def test_it_has_what_all_engines_have():
  clients = Clients([Engine(1, ["pause", "resume"]), Engine(1, ["resume", "leave"])])
  clients.resume()
  clients.leave("a job")
  assert not hasattr(clients, "pause") and not hasattr(clients, "_anything")
  assert [engine.calls for engine in clients._clients] == [[()], [(), ("a job",)]]


def test_one_engine_is_no_list():
  for one in ([], [Engine(1)]):
    with pytest.raises(ValueError, match=f"client= is a list of {len(one)}"):
      Clients(one)
