# SPDX-License-Identifier: Apache-2.0
"""Protects: events of the library reach Python's logging once it asks, from any thread, until the end, also after a fork."""

import logging
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

import reshard
from reshard import _core, _log

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "


@pytest.fixture
def logger():
  """The logger reshard, which has neither handler nor level before and after."""
  logger = logging.getLogger("reshard")
  level = _core._log_level()
  yield logger
  _log.end()
  for handler in list(logger.handlers):
    logger.removeHandler(handler)
  logging.Logger.setLevel(logger, logging.NOTSET)
  _core._set_log_level(level)


def run(code, **environment):
  env = {k: v for k, v in os.environ.items() if k != "RESHARD_LOG"} | environment
  done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False)
  assert done.returncode == 0, done.stderr
  return done.stdout, done.stderr


def test_events_are_lines_on_standard_error_at_first():
  say = "from reshard import _core; [_core._log_event(level, 'said') for level in ('error', 'warning', 'info', 'debug')]"
  for level, expected in (({}, ["error", "warning"]), ({"RESHARD_LOG": "info"}, ["error", "warning", "info"])):
    out, err = run(say, **level)
    assert out == ""
    assert re.fullmatch("".join(f"{LINE}{word} python: said\n" for word in expected), err), err


def test_a_level_brings_them_to_logging(logger, caplog):
  logger.setLevel(logging.INFO)
  assert _core._log_level() == "info"
  model = reshard.open_model("demo-moe")
  plan = reshard.plan(reshard.layout("megatron:tp=2", model), reshard.layout("vllm:tp=2", model))
  _core._log_event("debug", "not this")
  _log.end()
  (record,) = [r for r in caplog.records if r.name == "reshard.plan"]
  assert record.levelno == logging.INFO and record.rank is None and record.room == "plan"
  assert f"digest {plan.digest}" in record.getMessage()
  assert abs(record.created - time.time()) < 60
  assert "not this" not in caplog.text


def test_a_handler_of_ones_own_brings_them_too(logger):
  seen = []

  class Keep(logging.Handler):
    def emit(self, record):
      seen.append((threading.current_thread().name, record.levelname, record.getMessage()))

  logger.addHandler(logging.NullHandler())
  assert _log._receiver is None, "a NullHandler asks for nothing"
  logger.addHandler(Keep())
  _core._log_event("warning", "a\nb")
  _log.end()
  assert seen == [("reshard-log", "WARNING", "a\nb")]


def test_levels_follow_the_logger(logger):
  first = _core._log_level()
  for level, word in ((logging.CRITICAL, "error"), (logging.WARNING, "warning"), ("INFO", "info"), (15, "debug"), (5, "debug")):
    logger.setLevel(level)
    assert _core._log_level() == word
  logger.setLevel(logging.NOTSET)
  assert _core._log_level() == first
  with pytest.raises(reshard.InvalidArgumentError):
    _core._set_log_level("loud")


def test_a_handler_that_raises_ends_nothing(logger, capfd):
  seen = []

  def refuse(record):
    if "bad" in record.getMessage():
      raise RuntimeError("of the filter")
    seen.append(record.getMessage())
    return True

  handler = logging.NullHandler()
  logger.setLevel(logging.INFO)
  handler.handle = refuse
  logger.addHandler(handler)
  for text in ("bad", "good"):
    _core._log_event("info", text)
  _log.end()
  assert seen == ["good"]
  assert "RuntimeError: of the filter" in capfd.readouterr().err


def test_events_of_several_threads_arrive(logger, caplog, capfd):
  """By logging or, if the socket is full, as lines on standard error."""
  logger.setLevel(logging.INFO)
  threads = [threading.Thread(target=lambda: [_core._log_event("info", "e") for _ in range(300)]) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  _log.end()
  lines = re.findall(rf"(?m)^{LINE}info python: e$", capfd.readouterr().err)
  assert sum(r.getMessage() == "e" for r in caplog.records) + len(lines) == 1200


def test_none_is_lost_when_the_socket_is_full():
  out, err = run("""
import logging, sys, threading
from reshard import _core
gate = threading.Event()
class Slow(logging.Handler):
  def emit(self, record):
    gate.wait()
    print(record.getMessage())
logging.getLogger("reshard").addHandler(Slow())
for i in range(3000): _core._log_event("warning", f"event {i}")
gate.set()
""")
  handed, written = re.findall(r"event (\d+)", out), re.findall(r"event (\d+)", err)
  assert handed and written
  assert sorted(map(int, handed + written)) == list(range(3000))


def test_events_until_the_end_of_the_interpreter_arrive():
  out, err = run("""
import atexit, logging, sys
from reshard import _core, _exit
atexit.register(lambda: _core._log_event("info", "of a function at exit"))
logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
logging.getLogger("reshard").setLevel("INFO")
_core._log_event("info", "before the end")
""")
  assert (out, err) == ("reshard.python INFO before the end\nreshard.python INFO of a function at exit\n", "")
  out, err = run("""
import atexit
from reshard import _core
import logging
logging.getLogger("reshard").setLevel("INFO")
from reshard import _log
_log.end()
_core._log_event("info", "after the thread")
""")
  assert out == "" and re.fullmatch(rf"{LINE}info python: after the thread\n", err)


def test_a_logger_that_was_configured_before_the_import():
  out, err = run("""
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(name)s %(message)s")
logging.getLogger("reshard").setLevel(logging.DEBUG)
from reshard import _core
_core._log_event("debug", "seen")
""")
  assert (out, err) == ("reshard.python seen\n", "")


def test_children_by_fork_log_for_themselves():
  out, err = run("""
import logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.basicConfig(stream=sys.stdout, format="%(process)d %(message)s")
logging.getLogger("reshard").setLevel("INFO")
from reshard import _core, _log
_core._log_event("info", "parent")
pid = os.fork()
if pid == 0:
  _core._log_event("info", "child")
  _log.end()
  sys.stdout.flush()
  os._exit(0)
os.waitpid(pid, 0)
_core._log_event("info", "parent again")
_log.end()
print(os.getpid(), "parent is", os.getpid(), "child was", pid)
""")
  numbers = re.search(r"parent is (\d+) child was (\d+)", out)
  parent, child = numbers.groups()
  assert f"{child} child" in out.splitlines() and err == ""
  assert f"{parent} parent" in out.splitlines() and f"{parent} parent again" in out.splitlines()


def test_the_block_of_the_page():
  page = (pathlib.Path(__file__).parents[2] / "docs" / "operations.md").read_text()
  (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
  out, err = run(block + """
import reshard
model = reshard.open_model("demo-moe")
reshard.plan(reshard.layout("megatron:tp=2", model), reshard.layout("vllm:tp=2", model))
""")
  assert out == "" and re.match(r"INFO:reshard\.plan:planned megatron:tp=2 -> vllm:tp=2: 2 ranks, digest ", err), err
