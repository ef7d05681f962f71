# SPDX-License-Identifier: Apache-2.0
"""Law: engines that die, come and fall behind neither stop a fleet nor tear it."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fleet_process
import reshard
from reshard.fleet import serve
from ranks import TIMEOUT


class World:
  """A server, and the processes of a fleet."""

  def __init__(self, folder, doubled, transport="shm", timeout=30.0, report=5.0):
    self.folder, self.doubled, self.transport, self.timeout = str(folder), doubled, transport, timeout
    self.secret = secrets.token_hex(16)
    self.server = serve("tcp://127.0.0.1:0", secret=self.secret, timeout=timeout, report=report)
    self.processes, self.layouts = {}, {}

  def start(self, unit, size=1, by_columns=False, ranks=None):
    """Starts the processes of a unit, or some of them, and waits until they have joined."""
    context = multiprocessing.get_context("spawn")
    if unit not in self.layouts:
      self.layouts[unit] = fleet_process.layout_file(self.folder, unit, size, by_columns)
    for rank in range(size) if ranks is None else ranks:
      mine, theirs = context.Pipe()
      role = "trainer" if unit == "trainer" else "engine"
      place = {"unit": unit, "role": role, "layout": self.layouts[unit], "rank": rank, "size": size}
      process = context.Process(
        target=fleet_process.serve_pipe,
        args=(theirs, place, self.server.url, self.secret, self.doubled, self.transport, self.timeout),
        daemon=True,
      )
      process.start()
      theirs.close()
      self.processes[unit, rank] = process, mine
    for rank in range(size) if ranks is None else ranks:
      assert self.answer(unit, rank) == "joined"

  def tell(self, unit, *what, rank=None):
    for (name, r), (_, pipe) in self.processes.items():
      if name == unit and rank in (None, r):
        pipe.send(what)

  def answer(self, unit, rank=0):
    _, pipe = self.processes[unit, rank]
    assert pipe.poll(TIMEOUT), f"{unit} {rank} says nothing:\n{self.server.text()}"
    return pipe.recv()

  def answers(self, unit):
    return [self.answer(name, rank) for name, rank in self.processes if name == unit]

  def gone(self, unit, rank=0):
    """Waits for the end of a process, and forgets it."""
    process, _ = self.processes.pop((unit, rank))
    process.join(TIMEOUT)
    assert not process.is_alive()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process, _ in self.processes.values():
      process.kill()
    for process, _ in self.processes.values():
      process.join(TIMEOUT)
    self.server.close()


@pytest.fixture(params=[False, True], ids=["in place", "doubled"])
def doubled(request):
  return request.param


def refit(world, version, engines, of=()):
  """A refit of the trainer to these engines, all of which say that they have it."""
  for unit in of:
    world.tell(unit, "receive")
  world.tell("trainer", "refit", version, len(engines))
  reports = world.answers("trainer")
  assert {report[:3] for report in map(lambda r: (r[0], tuple(r[1]), r[2]), reports)} == {(version, tuple(sorted(engines)), "")}
  for unit in of:
    assert set(world.answers(unit)) == {version}
  return reports[0]


def test_engines_with_different_layouts_take_each_version_in_one_round_of_one_group(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer", 2)
    for unit, size, by_columns in (("a", 1, False), ("b", 2, True), ("c", 2, False)):
      world.start(unit, size, by_columns)
    for version in (1, 2, 3):
      report = refit(world, version, ["a", "b", "c"], ["a", "b", "c"])
      assert report[3:] == (1, 1)


@pytest.mark.parametrize("phase", ["begin", "transfer", "check", "commit", "committed"])
def test_an_engine_is_killed_in_each_phase_and_the_others_get_the_version(tmp_path, doubled, phase):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    for unit in ("a", "b", "c"):
      world.start(unit, 1, unit == "b")
    refit(world, 1, ["a", "b", "c"], ["a", "b", "c"])
    world.tell("b", "die", phase)
    world.tell("b", "receive")
    refit(world, 2, ["a", "c"], ["a", "c"])
    assert world.answer("b") == f"in {phase}"
    world.gone("b")
    refit(world, 3, ["a", "c"], ["a", "c"])


@pytest.mark.parametrize("phase", ["check", "committed"])
def test_a_rank_of_an_engine_is_killed_and_its_engine_comes_back_when_the_rank_does(tmp_path, doubled, phase):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    world.start("a")
    world.start("b", 2)
    refit(world, 1, ["a", "b"], ["a", "b"])
    world.tell("b", "die", phase, rank=1)
    world.tell("b", "receive")
    refit(world, 2, ["a"], ["a"])
    assert world.answer("b", 1) == f"in {phase}"
    world.gone("b", 1)
    world.tell("a", "receive")  # It waits for version 3, and is a source meanwhile.
    world.start("b", 2, ranks=[1])
    world.tell("b", "receive", rank=1)
    assert world.answers("b") == [2, 2]  # Rank 0 waits since the refit that failed.
    world.tell("b", "receive")
    world.tell("trainer", "refit", 3)
    assert world.answer("trainer")[:3] == (3, ["a", "b"], "")
    assert world.answers("a") + world.answers("b") == [3, 3, 3]


def test_an_engine_joins_between_refits_and_catches_up_from_a_peer(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    world.start("a", 2, True)
    refit(world, 1, ["a"], ["a"])
    process, _ = world.processes.pop(("trainer", 0))
    process.kill()  # The peer is enough.
    process.join(TIMEOUT)
    world.tell("a", "receive")
    world.start("b", 1)
    world.tell("b", "receive")
    assert world.answer("b") == 1
    assert not world.processes["a", 0][1].poll()  # It has been a source, and still waits.
    world.start("trainer")
    world.tell("b", "receive")
    world.tell("trainer", "refit", 2, 2)
    assert world.answer("trainer")[:3] == (2, ["a", "b"], "")
    assert world.answers("a") + world.answers("b") == [2, 2, 2]


def test_an_engine_joins_while_a_refit_runs_and_catches_up_from_a_peer(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    world.start("a")
    world.tell("a", "tell", "check")
    world.tell("a", "receive")
    world.tell("trainer", "refit", 1)
    assert world.answer("a") == "in check"
    world.start("b", 2)
    world.tell("b", "receive")
    world.tell("a", "go on")
    assert world.answer("a") == 1
    assert world.answer("trainer") == (1, ["a"], "", 1, 1)  # It does not wait for the other.
    world.tell("a", "receive")
    assert world.answers("b") == [1, 1]


def test_the_trainer_dies_in_a_refit_and_comes_back(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer", 2)
    for unit in ("a", "b"):
      world.start(unit)
    refit(world, 1, ["a", "b"], ["a", "b"])
    world.tell("trainer", "die", "check", rank=1)
    world.tell("a", "receive")
    world.tell("b", "receive")
    world.tell("trainer", "refit", 2)
    assert world.answer("trainer", 1) == "in check"
    world.gone("trainer", 1)
    assert world.answer("trainer", 0) == ("AbortedError", "refit: rank 1 of the trainer was lost")
    world.start("trainer", 2, ranks=[1])
    refit_again = refit(world, 2, ["a", "b"])
    assert refit_again[0] == 2
    assert world.answers("a") + world.answers("b") == [2, 2]


def test_with_the_trainer_dead_engines_keep_what_is_whole(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    world.start("a")
    refit(world, 1, ["a"], ["a"])
    world.tell("trainer", "die", "check")
    world.tell("a", "receive")
    world.tell("trainer", "refit", 2)
    assert world.answer("trainer") == "in check"
    world.gone("trainer")
    world.start("trainer")
    world.tell("trainer", "refit", 1)  # Below what it holds, if it holds a version.
    said = world.answer("trainer")
    if doubled:  # Version 1 is whole, so nobody needs it.
      assert said[:3] == (1, ["a"], "") and said[4] == 0
    else:
      assert said[:3] == (1, ["a"], "") and said[4] == 1
      assert world.answer("a") == 1
      world.tell("a", "receive")
    world.tell("trainer", "refit", 2)
    assert world.answer("trainer")[:3] == (2, ["a"], "")
    assert world.answer("a") == 2


def test_a_version_below_that_of_an_engine_is_refused(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    world.start("a")
    refit(world, 5, ["a"], ["a"])
    world.tell("trainer", "refit", 4)
    assert world.answer("trainer") == ("InvalidArgumentError", "refit: version 4 is not above 5, which engine 'a' holds")


def test_an_engine_that_stops_is_left_behind_and_the_others_get_the_version(tmp_path, doubled):
  with World(tmp_path, doubled, timeout=3.0, report=3.0) as world:
    world.start("trainer")
    for unit in ("a", "b"):
      world.start(unit)
    refit(world, 1, ["a", "b"], ["a", "b"])
    world.tell("b", "stop", "check")
    world.tell("a", "receive")
    world.tell("b", "receive")
    world.tell("trainer", "refit", 2)
    assert world.answer("b") == "in check"
    assert world.answer("trainer")[:3] == (2, ["a"], "")
    assert world.answer("a") == 2
    world.tell("a", "receive")  # It is a source meanwhile.
    os.kill(world.processes["b", 0][0].pid, signal.SIGCONT)
    assert world.answer("b") == 2


def test_an_engine_leaves(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    for unit in ("a", "b"):
      world.start(unit)
    refit(world, 1, ["a", "b"], ["a", "b"])
    world.tell("b", "leave")
    world.gone("b")
    assert refit(world, 2, ["a"], ["a"])[4] == 1


def test_only_an_earlier_version_is_published_again():
  published = reshard.PublishedVersion()
  empty = published.target_version()
  published.tear()
  torn = published.target_version()
  assert (torn.state, torn.version) == ("torn", -1)
  published.take_back(empty)
  assert published.target_version() == empty
  assert fleet_process.whole_once(published) == 7
  whole = published.target_version()
  other = reshard.PublishedVersion()
  with pytest.raises(reshard.InvalidArgumentError, match="whole, version 7 is not before empty"):
    other.take_back(whole)


def test_a_process_with_another_secret_is_no_member(tmp_path):
  with World(tmp_path, False) as world:
    with pytest.raises(reshard.AbortedError, match="secret"):
      fleet_process.Fleet(
        world.server.url,
        secret="another secret, as long",
        model=fleet_process.model(),
        unit="a",
        role="engine",
        layout="hf",
        tensors={},
      )
    assert "engine" not in world.server.text()


def test_a_seat_is_one_process_and_a_fleet_has_one_trainer(tmp_path):
  with World(tmp_path, False) as world:
    common = {"secret": world.secret, "model": fleet_process.model(), "layout": "hf", "tensors": {}, "timeout": 0.2}
    with fleet_process.Fleet(world.server.url, unit="t", role="trainer", **common):
      with pytest.raises(reshard.InvalidArgumentError, match="rank 0 of unit 't' is taken"):
        fleet_process.Fleet(world.server.url, unit="t", role="trainer", **common)
      with pytest.raises(reshard.InvalidArgumentError, match="the fleet has a trainer, 't'"):
        fleet_process.Fleet(world.server.url, unit="u", role="trainer", **common)
      with pytest.raises(reshard.InvalidArgumentError, match="layout hf has 1 ranks, and size is 2"):
        fleet_process.Fleet(world.server.url, unit="u", role="engine", size=2, **common)
      with pytest.raises(reshard.InvalidArgumentError, match="unit 't' is a trainer"):
        fleet_process.Fleet(world.server.url, unit="t", role="engine", **common)


class Decoders:
  """Members of a fleet of small decoders, in this process, and the weights of the trainer."""

  def __init__(self):
    self._model = reshard.open_model(str(pathlib.Path(__file__).parents[2] / "tests" / "cli" / "small_moe.json"))
    self._secret = secrets.token_hex(16)
    self.server = serve("tcp://127.0.0.1:0", secret=self._secret)
    self.trained = self.memory("megatron:tp=1")
    random = np.random.default_rng(1)
    for tensor in self.trained.values():
      values = random.standard_normal(len(tensor.raw()) // 2, np.float32)
      tensor.raw()[:] = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # BF16

  def memory(self, layout):
    return reshard.RankBuffers.allocate(reshard.layout(layout, self._model), [0]).tensors(0)

  def member(self, unit, role, layout, tensors):
    return fleet_process.Fleet(
      self.server.url, secret=self._secret, model=self._model, unit=unit, role=role, layout=layout, tensors=tensors,
      verify="always", timeout=30.0,
    )  # fmt: skip

  def trainer(self):
    return self.member("trainer", "trainer", "megatron:tp=1", self.trained)


def bytes_of(tensors):
  return {name: bytes(tensor.raw()) for name, tensor in tensors.items()}


def test_quantised_engines_catch_up_from_one_another_byte_for_byte():
  fleet, quantised = Decoders(), "vllm:tp=1,quant=fp8_channel"
  with fleet.server, ThreadPoolExecutor() as threads:
    a, b = fleet.memory(quantised), fleet.memory(quantised)
    with fleet.member("a", "engine", quantised, a) as first:
      received = threads.submit(first.receive)
      with fleet.trainer() as trainer:
        assert trainer.refit(1, engines=1).engines == ["a"]
      assert received.result(TIMEOUT) == 1
      waits = threads.submit(first.receive)
      with fleet.member("b", "engine", quantised, b) as second:
        assert second.receive(timeout=TIMEOUT) == 1
      first.cancel()
      with pytest.raises(reshard.AbortedError):
        waits.result(TIMEOUT)
  assert bytes_of(a) == bytes_of(b)
  assert any(any(tensor) for tensor in bytes_of(a).values())


def test_engines_in_other_formats_take_a_version_in_one_round():
  fleet, layouts = Decoders(), ("vllm:tp=1", "vllm:tp=1,quant=fp8_channel", "sglang:tp=1,quant=mxfp8")
  memory = [fleet.memory(layout) for layout in layouts]
  with fleet.server, ThreadPoolExecutor() as threads, contextlib.ExitStack() as stack:
    engines = [
      stack.enter_context(fleet.member(f"e{i}", "engine", layout, memory[i])) for i, layout in enumerate(layouts)
    ]
    received = [threads.submit(engine.receive) for engine in engines]
    with fleet.trainer() as trainer:
      report = trainer.refit(1, engines=3)
    assert (report.engines, report.left_behind, report.rounds) == (["e0", "e1", "e2"], "", 1)
    assert [one.result(TIMEOUT) for one in received] == [1, 1, 1]
  name = "model.layers.0.self_attn.o_proj.weight"
  plain = memory[0][name]
  assert bytes(plain.raw()) == bytes(fleet.trained["decoder.layers.0.self_attention.linear_proj.weight"].raw())
  for tensors, form in ((memory[1], "fp8_channel"), (memory[2], "mxfp8")):
    assert bytes(tensors[name].raw()) == bytes(reshard.quantise(plain, form).data.raw())


def test_nothing_is_left_of_engines_that_came_and_went():
  secret = secrets.token_hex(16)

  def member(unit, role):
    tensors = {f"layer.{layer}.weight": np.zeros(fleet_process.SHAPE, np.float32) for layer in range(6)}
    common = {"secret": secret, "model": fleet_process.model(), "layout": "hf"}
    return fleet_process.Fleet(server.url, unit=unit, role=role, tensors=tensors, **common)

  def left(unit):
    """The numbers of descriptors and threads, once the server knows that a unit has left."""
    end = time.monotonic() + TIMEOUT
    while f"'{unit}'" in server.text():
      assert time.monotonic() < end
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

  with serve("tcp://127.0.0.1:0", secret=secret) as server, ThreadPoolExecutor(1) as threads:
    with member("trainer", "trainer") as trainer:
      before = None
      for version in range(20):
        with member(f"engine-{version}", "engine") as engine:
          received = threads.submit(engine.receive)
          assert trainer.refit(version, engines=1).engines == [engine.unit]
          assert received.result(TIMEOUT) == version
          del received
        now = left(engine.unit)
        before = before or now
        # A group that has ended may close its last connection a moment later.
        assert all(count <= first + 3 for count, first in zip(now, before))


def test_random_fleets(tmp_path):
  script = pathlib.Path(__file__).parents[2] / "tests" / "faults" / "fleet_runs.py"
  log = tmp_path / "runs"
  command = [sys.executable, "-B", str(script), "--runs", "3", "--seed", "100", "--log", str(log)]
  done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
  assert done.returncode == 0, done.stdout + done.stderr
  assert sum(json.loads(line)["killed"] for line in log.read_text().splitlines()) > 0


def test_a_server_of_its_own(tmp_path):
  secret = tmp_path / "secret"
  secret.write_text(secrets.token_hex(16))
  secret.chmod(0o600)
  command = [sys.executable, "-m", "reshard.fleet", "tcp://127.0.0.1:0", "--secret-file", str(secret)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    said = server.stdout.readline().split()
    assert said[:4] == ["serves", "fleet", "fleet", "at"]
    place = {"secret_file": secret, "model": fleet_process.model(), "layout": "hf", "tensors": {}}
    with fleet_process.Fleet(said[4], unit="t", role="trainer", **place) as fleet:
      assert fleet.refit(1) == reshard.FleetReport(1)
    server.terminate()
    assert server.wait(TIMEOUT) == 0


def test_members_join_a_server_that_comes_again(tmp_path):
  address = {"url": f"file://{tmp_path}", "job": "again"}
  place = {"model": fleet_process.model(), "layout": "hf", "tensors": {}, "timeout": 30.0}
  with serve(**address):
    fleet = fleet_process.Fleet(unit="t", role="trainer", **address, **place)
    assert fleet.refit(1).version == 1
  with serve(**address) as server, fleet:
    assert fleet.refit(2).version == 2
    assert "trainer 't'" in server.text()


def test_a_member_without_a_server_says_so(tmp_path):
  address = {"url": f"file://{tmp_path}", "job": "none"}
  place = {"model": fleet_process.model(), "layout": "hf", "tensors": {}, "timeout": 0.2}
  with pytest.raises(reshard.DeadlineError, match="nobody serves at"):
    fleet_process.Fleet(unit="t", role="trainer", **address, **place)
  with serve(**address):
    fleet = fleet_process.Fleet(unit="t", role="trainer", **address, **place)
  with fleet, pytest.raises(reshard.AbortedError, match="the server of the fleet is lost"):
    fleet.refit(1)


def test_an_engine_that_cannot_take_a_version_is_left_behind_with_the_reason(tmp_path, doubled):
  with World(tmp_path, doubled) as world:
    world.start("trainer")
    world.start("a")
    world.tell("a", "fail", "transfer")
    world.tell("a", "fail again", "begin")
    world.tell("a", "receive")
    world.tell("trainer", "refit", 1)
    version, engines, left_behind, _, rounds = world.answer("trainer")
    assert (version, engines, rounds) == (1, [], 2)
    assert "engines 'a' have not got version 1: " in left_behind and "the engine is full" in left_behind
    assert refit(world, 2, ["a"])[4] == 1
    assert world.answer("a") == 2
