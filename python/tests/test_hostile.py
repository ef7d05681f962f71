# SPDX-License-Identifier: Apache-2.0
"""Law: misuse is a clear exception: no crash, no hang, no leak."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import reshard
from ranks import TIMEOUT, in_threads
from session_process import layouts, memory, session_of


def run(program):
  """The output of a program that imports what these tests do."""
  folder = os.path.dirname(__file__)
  done = subprocess.run(
    [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
    capture_output=True,
    text=True,
    timeout=TIMEOUT,
    env={**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])},
  )
  assert done.returncode == 0, done.stderr
  assert "leaked" not in done.stderr, done.stderr
  return done.stdout


def one_rank():
  """A session whose only rank holds both sides."""
  model = reshard.Model.from_tensors("one", {"w": ((8, 8), "F32")})
  layout = reshard.layout("hf", model)
  group = reshard.local(1)[0]
  return group, reshard.Session(
    group, source=layout, source_tensors=memory(layout, 0, 1), target=layout, target_tensors=memory(layout, 0, 0)
  )


def test_a_forked_child_gets_an_error_and_the_parent_goes_on():
  out = run("""
    import os
    import reshard
    from test_hostile import one_rank
    group, session = one_rank()
    session.refit(1)
    child = os.fork()
    if child == 0:
      for call in (lambda: session.refit(2), session.verify, group.barrier, group.status, lambda: session.path,
                   lambda: group.abort("x"), lambda: session.update(target_tensors={})):
        try:
          call()
        except reshard.InvalidArgumentError as error:
          assert "was forked; join a group here" in str(error), error
        else:
          raise AssertionError(call)
      del call, session, group
      own_group, own = one_rank()
      own.refit(1)
      raise SystemExit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    session.refit(2)
    print(session.target_version().version)
  """)
  assert out == "2\n"


def test_a_child_of_a_fork_leaves_the_groups_of_processes_alone():
  out = run("""
    import os, multiprocessing
    import reshard
    from ranks import free_url
    url, secret = free_url(), "0123456789abcdef"
    def other():
      with reshard.join(url, rank=1, size=2, secret=secret) as group:
        group.barrier()
        group.barrier()
    process = multiprocessing.get_context("fork").Process(target=other)
    process.start()
    group = reshard.join(url, rank=0, size=2, secret=secret)
    group.barrier()
    child = os.fork()
    if child == 0:
      del group
      raise SystemExit(0)
    os.waitpid(child, 0)
    group.status()
    group.barrier()
    process.join(30)
    print(process.exitcode)
  """)
  assert out == "0\n"


@pytest.mark.parametrize("keep", ["", "reshard.kept = (group, session)", "cycle = [session]; cycle.append(cycle)"])
def test_the_interpreter_ends_with_a_session_open(keep):
  assert run(f"""
    import reshard
    from test_hostile import one_rank
    group, session = one_rank()
    session.refit(1)
    {keep}
    print("end")
  """) == "end\n"


def test_the_interpreter_ends_while_a_thread_is_in_a_refit():
  assert run("""
    import threading
    import reshard
    from session_process import session_of
    waits = threading.Barrier(2)
    groups = reshard.local(3)
    def train(group):
      session, *_ = session_of(group, on_phase=lambda phase: waits.wait(), timeout=1000)
      try:
        session.refit(1)
      except Exception:
        pass  # The end drops the other sessions. A daemon thread that prints then may end Python with "Fatal error".
    kept = []
    for group in groups[1:]:
      threading.Thread(target=lambda group: kept.append(session_of(group)), args=(group,), daemon=True).start()
    threading.Thread(target=train, args=(groups[0],), daemon=True).start()
    waits.wait()
    print("end")
  """) == "end\n"


def test_the_interpreter_ends_while_a_thread_waits_in_on_phase():
  assert run("""
    import threading
    import reshard
    from test_hostile import one_rank
    there, never = threading.Event(), threading.Event()
    model = reshard.Model.from_tensors("one", {"w": ((8, 8), "F32")})
    layout = reshard.layout("hf", model)
    def wait(phase):
      there.set()
      never.wait()
    def refit():
      session = reshard.Session(reshard.local(1)[0], source=layout, target=layout, on_phase=wait,
        source_tensors={"w": bytearray(256)}, target_tensors={"w": bytearray(256)})
      session.refit(1)
    threading.Thread(target=refit, daemon=True).start()
    there.wait()
    print("end")
  """) == "end\n"


def test_two_sessions_in_threads_do_not_disturb_each_other():
  def both(index):
    def body(group):
      session, mine, theirs = session_of(group)
      for version in range(1, 20):
        for tensor in (mine or {}).values():
          tensor.fill(version * 2 + index)
        session.refit(version)
        for tensor in (theirs or {}).values():
          assert np.all(tensor == version * 2 + index)
      session.close()

    in_threads(3, body)

  threads = [threading.Thread(target=both, args=(index,)) for index in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_callback_may_not_use_the_session_that_calls_it():
  model = reshard.Model.from_tensors("one", {"w": ((8, 8), "F32")})
  layout = reshard.layout("hf", model)
  calls = {
    "refit": lambda: session.refit(2),
    "verify": lambda: session.verify(),
    "close": lambda: session.close(),
    "group": lambda: group.close(),
    "update": lambda: session.update(source=layout),
  }
  for name, call in calls.items():
    group = reshard.local(1)[0]
    session = reshard.Session(
      group,
      source=layout,
      source_tensors=memory(layout, 0, 1),
      target=layout,
      target_tensors=memory(layout, 0, 0),
      on_phase=lambda phase, call=call: call(),
    )
    with pytest.raises(reshard.InvalidArgumentError, match=r"refit\(\) is in progress"):
      session.refit(1)
    assert session.target_version().state == "empty", name


def test_a_closed_session_says_so_and_keeps_its_version():
  group, session = one_rank()
  session.refit(3)
  group.close()
  assert session.closed and session.target_version().version == 3
  for call in (lambda: session.refit(4), session.verify, lambda: session.path, lambda: session.peers):
    with pytest.raises(reshard.InvalidArgumentError, match="closed"):
      call()
  session.close()


def test_a_session_in_a_cycle_with_its_callback_is_collected():
  class Engine:
    def __init__(self):
      self.weight = np.zeros((8, 8), np.float32)
      model = reshard.Model.from_tensors("one", {"w": ((8, 8), "F32")})
      layout = reshard.layout("hf", model)
      self.tensors = {"w": self.weight, "self": self}
      self.session = reshard.Session(
        reshard.local(1)[0],
        source=layout,
        source_tensors=memory(layout, 0, 1),
        target=layout,
        target_tensors=lambda: {"w": self.weight},
        on_phase=self.on_phase,
      )

    def on_phase(self, phase):
      pass

  engine = Engine()
  engine.session.refit(1)
  gone = weakref.ref(engine)
  del engine
  gc.collect()
  assert gone() is None


class Counted(np.ndarray):
  alive = 0


def counted(layout, rank, fill):
  tensors = {}
  for name, tensor in (memory(layout, rank, fill) or {}).items():
    tensors[name] = tensor.view(Counted)
    Counted.alive += 1
    weakref.finalize(tensors[name], lambda: setattr(Counted, "alive", Counted.alive - 1))
  return tensors or None


def refit_often(times):
  model = reshard.Model.from_tensors("one", {f"w{i}": ((8, 8), "F32") for i in range(20)})
  layout = reshard.layout("hf", model)
  for _ in range(times):
    with reshard.local(1)[0] as group:
      mine, theirs = counted(layout, 0, 1), counted(layout, 0, 0)
      with reshard.Session(
        group, source=layout, source_tensors=mine, target=layout, target_tensors=theirs, verify="always"
      ) as session:
        session.refit(1)
        theirs["w3"] = np.zeros((8, 8), np.float32).view(Counted)
        with pytest.raises(reshard.InvalidArgumentError):
          session.refit(2)
      with pytest.raises(reshard.InvalidArgumentError):
        reshard.Session(group, source=layout, source_tensors={"w0": 3}, target=layout, target_tensors=theirs)


def test_a_hundred_sessions_leave_nothing_behind():
  refit_often(10)
  gc.collect()
  tracemalloc.start()
  before = tracemalloc.get_traced_memory()[0]
  refit_often(100)
  gc.collect()
  after = tracemalloc.get_traced_memory()[0]
  tracemalloc.stop()
  assert Counted.alive == 0
  assert after - before < 100_000  # what Python caches; one session would be more than 20 times this


def test_a_thousand_refits_of_a_session_leave_nothing_behind():
  group, session = one_rank()
  for version in range(1, 100):
    session.refit(version)
  gc.collect()
  objects = len(gc.get_objects())
  for version in range(100, 1100):
    session.refit(version)
  gc.collect()
  assert len(gc.get_objects()) - objects < 50


def test_a_subinterpreter_is_refused():
  interpreters = pytest.importorskip("_xxsubinterpreters")
  assert interpreters
  out = run("""
    import _xxsubinterpreters as interpreters
    import reshard
    other = interpreters.create()
    try:
      interpreters.run_string(other, "import reshard")
    except interpreters.RunFailedError as error:
      print("refused" if "ImportError" in str(error) else error)
    interpreters.destroy(other)
  """)
  assert out == "refused\n"
