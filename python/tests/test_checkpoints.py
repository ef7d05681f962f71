# SPDX-License-Identifier: Apache-2.0
"""Protects: checkpoints are converted and compared as by the program; whatever interrupts it arrives whole."""

import signal
import threading

import pytest

import reshard


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp("checkpoint") / "hf"
  report = reshard.synthesize("demo-moe", folder, layers=2, seed=3, progress=False)
  assert report.bytes == report.model.bytes and report.files == 1
  return folder


def test_a_checkpoint_is_converted_and_compared(checkpoint, tmp_path):
  calls = []
  report = reshard.convert(checkpoint, tmp_path / "engine", "vllm:tp=2", progress=lambda *call: calls.append(call))
  assert (report.ranks, report.files, report.layout) == (2, 2, "vllm:tp=2") and report.omitted == []
  assert calls[-1] == ("write", report.bytes, report.bytes)
  found = reshard.verify(checkpoint, tmp_path / "engine", progress=False)
  assert found and found.equal and found.same == len(reshard.open_model(checkpoint).tensors)
  assert (found.a.layout, found.b.layout) == ("hf", "vllm:tp=2")
  model = reshard.open_model(tmp_path / "engine")
  assert model.weights.kind == "ranks" and model.weights.world_size == 2
  assert reshard.Layout.of_checkpoint(model) == reshard.layout("vllm:tp=2", model)


def test_what_differs_is_reported(checkpoint, tmp_path):
  reshard.synthesize("demo-moe", tmp_path / "other", layers=2, seed=4, progress=False)
  found = reshard.verify(checkpoint, tmp_path / "other", progress=False)
  assert not found and found.differing[0].a != found.differing[0].b
  assert found.differing[0].name in reshard.open_model(checkpoint).tensors
  ignored = reshard.verify(checkpoint, tmp_path / "other", ignore="*", progress=False)
  assert ignored.equal and len(ignored.ignored) > 0


def test_a_quantised_output_says_so(checkpoint, tmp_path):
  reshard.convert(checkpoint, tmp_path / "fp8", to="hf:quant=fp8_block", progress=False)
  assert reshard.open_model(tmp_path / "fp8").stored_as == "fp8_block"


@pytest.mark.parametrize(
  ("arguments", "error", "message"),
  [
    ({"to": "vlm:tp=2"}, reshard.InvalidArgumentError, "unknown family"),
    ({"input": "/nowhere"}, reshard.NotFoundError, "/nowhere"),
    ({"from_": "vllm:tp=2"}, reshard.InvalidArgumentError, "from"),
    ({"buffer_bytes": 0}, reshard.InvalidArgumentError, "buffer_bytes is 0"),
    ({"threads": -1}, reshard.InvalidArgumentError, "threads is -1"),
    ({"ignore": "nope*"}, reshard.NotFoundError, "nope"),
    ({"progress": 3}, TypeError, "progress must be a callable"),
    ({"to": 3}, TypeError, "to must be str, not int"),
    ({"input": b"\xff"}, (TypeError, reshard.Error, UnicodeDecodeError), None),
  ],
)
def test_what_is_wrong_is_refused(checkpoint, tmp_path, arguments, error, message):
  options = {"input": checkpoint, "output": tmp_path / "out", "to": "hf", "progress": False} | arguments
  with pytest.raises(error, match=message):
    reshard.convert(**options)
  assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_stays(checkpoint, tmp_path):
  (tmp_path / "out").mkdir()
  with pytest.raises(reshard.InvalidArgumentError, match="exists"):
    reshard.convert(checkpoint, tmp_path / "out", "hf", progress=False)


@pytest.mark.parametrize("keep", [0, 4, 20, 300])
def test_a_truncated_checkpoint_is_corrupt(checkpoint, tmp_path, keep):
  broken = tmp_path / "broken"
  broken.mkdir()
  (broken / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
  (broken / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:keep])
  for use in (reshard.open_model, lambda path: reshard.convert(path, tmp_path / "out", "hf", progress=False)):
    with pytest.raises(reshard.CorruptError, match="model.safetensors"):
      use(broken)
  assert not (tmp_path / "out").exists()


class Stop(Exception):
  """What a callback raises."""


@pytest.mark.parametrize("in_main_thread", [True, False])
def test_an_exception_of_a_callback_arrives_whole(checkpoint, tmp_path, in_main_thread):
  mistake = Stop("enough")

  def stop(phase, done, total):
    raise mistake

  def convert():
    with pytest.raises(Stop, match="enough") as caught:
      reshard.convert(checkpoint, tmp_path / "out", "hf:shards=2", progress=stop)
    assert caught.value is mistake and caught.traceback[-1].name == "stop"
    done.append(True)

  done = []
  if in_main_thread:
    convert()
  else:
    thread = threading.Thread(target=convert)
    thread.start()
    thread.join()
  assert done == [True] and not (tmp_path / "out").exists()
  # The same call resumes, or begins again.
  reshard.convert(checkpoint, tmp_path / "out", "hf:shards=2", progress=False)
  assert reshard.verify(checkpoint, tmp_path / "out", progress=False)


def test_false_of_a_callback_cancels(checkpoint, tmp_path):
  with pytest.raises(reshard.AbortedError, match="cancelled"):
    reshard.convert(checkpoint, tmp_path / "out", "hf", progress=lambda *_: False)
  with pytest.raises(reshard.AbortedError, match="cancelled"):
    reshard.verify(checkpoint, checkpoint, progress=lambda *_: False)
  with pytest.raises(reshard.AbortedError, match="cancelled"):
    reshard.synthesize("demo-moe", tmp_path / "out", layers=2, progress=lambda *_: False)
  assert not (tmp_path / "out").exists()


@pytest.fixture
def handled(monkeypatch):
  """Set once Python has handled SIGINT, which raises KeyboardInterrupt."""
  event = threading.Event()

  def handler(number, frame):
    event.set()
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGINT, handler)
  yield event
  signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("operation", ["convert", "verify", "synthesize"])
def test_ctrl_c_ends_a_long_operation(checkpoint, tmp_path, handled, operation):
  def interrupt(phase, done, total):
    if not handled.is_set():
      signal.raise_signal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else signal.pthread_kill(
        threading.main_thread().ident, signal.SIGINT
      )
      assert handled.wait(60)

  calls = {
    "convert": lambda: reshard.convert(checkpoint, tmp_path / "out", "hf", progress=interrupt),
    "verify": lambda: reshard.verify(checkpoint, checkpoint, progress=interrupt),
    "synthesize": lambda: reshard.synthesize("demo-moe", tmp_path / "out", layers=2, progress=interrupt),
  }
  with pytest.raises(KeyboardInterrupt):
    calls[operation]()
  assert not (tmp_path / "out").exists()


def test_a_handler_that_does_not_raise_does_not_cancel(checkpoint, tmp_path):
  seen = threading.Event()
  before = signal.signal(signal.SIGINT, lambda *_: seen.set())
  try:

    def interrupt(phase, done, total):
      if not seen.is_set():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert seen.wait(60)

    reshard.convert(checkpoint, tmp_path / "out", "hf", progress=interrupt)
  finally:
    signal.signal(signal.SIGINT, before)
  assert seen.is_set() and (tmp_path / "out").is_dir()


def test_other_threads_run_meanwhile(checkpoint, tmp_path):
  """A thread that answers proves that the GIL is free while the library works."""
  asked, answered = threading.Event(), threading.Event()

  def answer():
    asked.wait(60)
    answered.set()

  thread = threading.Thread(target=answer)
  thread.start()

  def ask(phase, done, total):
    asked.set()
    assert answered.wait(60)

  reshard.convert(checkpoint, tmp_path / "out", "hf", progress=ask)
  thread.join()


def test_progress_is_shown_by_tqdm_on_a_terminal(checkpoint, tmp_path, monkeypatch, capsys):
  pytest.importorskip("tqdm")
  reshard.convert(checkpoint, tmp_path / "out", "hf", progress=True)
  assert "write" in capsys.readouterr().err
  reshard.convert(checkpoint, tmp_path / "quiet", "hf")
  assert capsys.readouterr().err == ""
