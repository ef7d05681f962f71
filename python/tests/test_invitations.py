# SPDX-License-Identifier: Apache-2.0
"""Protects: an invitation that leads nowhere costs an engine nothing, what was asked for before each update is what
the engine has, and the secret of a group is in no text that is shown."""

import dataclasses
import http.server
import json
import threading
import traceback

import pytest

torch = pytest.importorskip("torch")

from ranks import TIMEOUT  # noqa: E402
from reshard.engines import invitation, state  # noqa: E402
from reshard.engines.hidden import hidden, without_secret  # noqa: E402
from reshard.engines.invitation import Invitation, InvitedLink, Invitations  # noqa: E402

import reshard  # noqa: E402
import reshard.vllm  # noqa: E402

SECRET = "a secret \"of\" 'many' \\ characters"


def invited(tmp_path, **more):
  said = {
    "url": f"file://{tmp_path}", "job": "a-job", "secret": SECRET, "trainers": 1, "engines": [1], "transport": "shm",
    "deadline": TIMEOUT, "route": "auto", "in_place": False, "verify": False, "tensors": [], "config": "",
  }  # fmt: skip
  return Invitation(**(said | more))


def test_its_text_has_no_secret(tmp_path):
  assert SECRET in invited(tmp_path).as_dict().values()
  text = repr(invited(tmp_path))
  assert "many" not in text and "secret=" not in text and "a-job" in text


def test_numbers_of_wanted_tensors_are_checked(tmp_path):
  tensors = [["a", "float32", [2], [2]]]
  assert Invitation.of(invited(tmp_path, tensors=tensors, wanted=[0]).as_dict()).wanted == [0]
  with pytest.raises(reshard.InvalidArgumentError, match="must be a list of numbers, or null"):
    Invitation.of(invited(tmp_path, tensors=tensors, wanted=0).as_dict())
  for wrong in (1, -1, "a", 0.5):
    with pytest.raises(reshard.InvalidArgumentError, match="must be the number of one of 1 tensors"):
      Invitation.of(invited(tmp_path, tensors=tensors, wanted=[wrong]).as_dict())


def test_what_another_release_sends_is_refused_by_its_protocol(tmp_path):
  said = invited(tmp_path).as_dict()
  assert Invitation.of(said) == invited(tmp_path)
  for other in ({"protocol": 2}, {"protocol": 99, "more": 1}, {"protocol": None}):
    with pytest.raises(reshard.InvalidArgumentError, match="speaks protocol"):
      Invitation.of(said | other)
  with pytest.raises(reshard.InvalidArgumentError, match="another release"):
    Invitation.of(said | {"more": 1})
  for name, value in (("deadline", 1e9), ("deadline", 0), ("deadline", "1"), ("trainers", 0), ("engines", 2), ("engine", 1)):
    with pytest.raises(reshard.InvalidArgumentError, match=name):
      Invitation.of(said | {name: value})
  with pytest.raises(reshard.InvalidArgumentError, match="workers '2': must be from 1"):
    Invitation.of(said | {"engines": [1, "2"]})


def test_a_group_is_taken_once_it_is_complete(tmp_path):
  worker, given = Invitations(), invited(tmp_path)
  taken = []

  def train():
    with_all = InvitedLink(given, 0)
    taken.append(with_all.gather("trainer"))
    with_all.close()

  trainer = threading.Thread(target=train)
  trainer.start()
  assert worker.take(given, 1) is None
  link = worker.take(dataclasses.replace(given, ready=True), 1)
  assert link.gather("worker") == ["trainer", "worker"]
  trainer.join()
  link.close()
  with pytest.raises(reshard.InvalidArgumentError, match="has not invited"):
    worker.take(dataclasses.replace(given, ready=True), 1)


def test_invitations_that_lead_nowhere_do_not_wait_and_are_few(tmp_path, monkeypatch):
  monkeypatch.setattr(invitation, "_BEGIN", 0.0)
  monkeypatch.setattr(invitation, "_READY", 0.0)
  # Long enough that a call which waited for it would be seen.
  worker = Invitations()
  given = [invited(tmp_path, job=f"job-{i}", deadline=3600) for i in range(9)]
  for one in given[:8]:
    assert worker.take(one, 1) is None
  assert worker.take(given[0], 1) is None  # again: in its own place
  with pytest.raises(reshard.UnsupportedError, match="8 other trainers"):
    worker.take(given[8], 1)
  with pytest.raises(reshard.DeadlineError, match="not complete"):
    worker.take(dataclasses.replace(given[3], ready=True), 1)
  assert worker.take(given[8], 1) is None  # there is a place again
  worker.close()


def test_joining_that_fails_at_once_is_an_error_of_the_call(tmp_path):
  worker = Invitations()
  for _ in range(20):  # and takes no place
    with pytest.raises(reshard.Error, match="transport"):
      worker.take(invited(tmp_path, transport="no such"), 1)


def test_a_text_is_shown_without_the_secret():
  for text in (f"no {SECRET}", json.dumps({"secret": SECRET}), repr({"secret": SECRET})):
    assert "many" not in hidden(text, SECRET) and "***" in hidden(text, SECRET)
  assert hidden("nothing", "") == "nothing"


def test_an_error_that_shows_the_secret_is_replaced_and_others_stay():
  fine = ValueError("no such model")
  assert without_secret(fine, SECRET) is fine
  try:
    try:
      raise KeyError(SECRET)
    except KeyError as error:
      raise OSError("no answer") from error
  except OSError as error:
    made = without_secret(error, SECRET)
  assert type(made) is RuntimeError and str(made) == "OSError: no answer"
  assert "many" not in "".join(traceback.format_exception(made))


class _Repeats(http.server.BaseHTTPRequestHandler):
  """A server that repeats what it does not understand, as validators of requests do."""

  def do_POST(self):
    body = self.rfile.read(int(self.headers["Content-Length"]))
    self.send_response(422)
    self.end_headers()
    self.wfile.write(b'{"detail": [{"input": ' + body + b"}]}")

  def log_message(self, *_):
    pass


@pytest.fixture
def server():
  made = http.server.HTTPServer(("127.0.0.1", 0), _Repeats)
  thread = threading.Thread(target=made.serve_forever)
  thread.start()
  yield f"http://127.0.0.1:{made.server_port}"
  made.shutdown()
  thread.join()
  made.server_close()


def test_errors_of_a_server_do_not_show_the_secret(tmp_path, server):
  with pytest.raises(RuntimeError, match="422.*a-job") as error:
    reshard.vllm.HttpClient(server).init_weight_transfer_engine(invited(tmp_path).as_dict())
  assert "many" not in "".join(traceback.format_exception(error.value))


class _Shows:
  """A client whose errors show what it was given."""

  def init_weight_transfer_engine(self, init_info):
    raise ConnectionError(f"cannot send {init_info}")

  def get_world_size(self):
    return 1


def test_errors_of_any_client_do_not_show_the_secret():
  model = reshard.Model.from_tensors("m", {"w": ([2], "float32")})
  with pytest.raises(RuntimeError, match="cannot send") as error:
    reshard.vllm.Trainer(reshard.layout("hf", model), {"w": torch.zeros(2)}, client=_Shows(), secret=SECRET, deadline=5)
  assert "many" not in "".join(traceback.format_exception(error.value))
  with pytest.raises(ValueError, match="at most 3600 seconds"):
    reshard.vllm.Trainer(reshard.layout("hf", model), {}, client=_Shows(), deadline=1e6)


class _OnGpu:
  """Stands for a tensor of a GPU."""

  device = torch.device("cuda", 0)

  def __init__(self, address, elements=4):
    self._address, self._elements = address, elements

  def numel(self):
    return self._elements

  def data_ptr(self):
    return self._address


def test_memory_that_an_engine_gave_back_is_found(monkeypatch):
  tensors = [("host", torch.zeros(2)), ("here", _OnGpu(16)), ("empty", _OnGpu(0, 0)), ("gone", _OnGpu(32))]
  assert state.unmapped(tensors, lambda address: address == 16) == "gone"
  assert state.unmapped(tensors[:3], lambda address: address == 16) == ""
  # What the driver says: mapped, not mapped, no address of its own, another error.
  for status, value, name in ((0, 1, ""), (0, 0, "here"), (1, 0, "here"), (100, 0, "")):

    def attribute(answer, number, address, status=status, value=value):
      assert number == 13 and address.value in (16, 32)
      answer._obj.value = value
      return status

    monkeypatch.setattr(state, "_pointer_attribute", lambda attribute=attribute: attribute)
    assert state.unmapped(tensors) == name
  monkeypatch.setattr(state, "_pointer_attribute", lambda: None)
  assert state.unmapped(tensors) == ""


def test_what_differs_is_named():
  layer = torch.nn.Module()
  layer.experts = torch.nn.Module()
  layer.experts.register_buffer("_expert_map", torch.tensor([0, 1, -1, -1]))
  before = {"experts": state.digest(state.experts_of(layer)), "sizes": {"tp": 2}}
  assert state.difference(before, dict(before)) == ""
  layer.experts._expert_map = torch.tensor([-1, 1, 0, -1])
  now = {"experts": state.digest(state.experts_of(layer)), "sizes": {"tp": 4}}
  assert state.difference(before, now) == "experts, sizes"
