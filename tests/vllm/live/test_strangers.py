# SPDX-License-Identifier: Apache-2.0
"""Protects: what somebody else sends to a server reaches neither its weights nor the trainer that it has."""

import json
import urllib.error
import urllib.request

from reshard.engines.invitation import PROTOCOL


def post(server, path, body):
  """The server's answer, whatever its status."""
  request = urllib.request.Request(
    f"{server.url}/{path}", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
  )
  try:
    with urllib.request.urlopen(request, timeout=120) as answer:
      return answer.read().decode()
  except urllib.error.HTTPError as error:
    return error.read().decode()


def test_invitations_that_lead_nowhere_leave_the_trainer_and_the_engine_alone(
  server_of, checkpoints, of_b, trainer, tmp_path
):
  server = server_of("llama")
  before = server.generate()
  trained = trainer(server, 1, "hf", 1, checkpoints["llama", "a"])
  said = {
    "url": f"file://{tmp_path}", "job": "a-stranger", "secret": "0123456789abcdef", "trainers": 1, "engines": [1],
    "transport": "shm", "deadline": 3600.0, "route": "auto", "in_place": False, "verify": False, "tensors": [],
    "config": "", "protocol": PROTOCOL,
  }  # fmt: skip
  for more in ({"protocol": PROTOCOL - 1}, {"deadline": 1e9}, {}):
    post(server, "init_weight_transfer_engine", {"init_info": said | more})
    assert server.generate() == before  # it does not wait for them
  assert said["secret"] not in "".join(server.log)
  trained.update(checkpoints["llama", "b"])
  assert (server.generate(), server.checksums()) == of_b("llama", 1)
  trained.update(checkpoints["llama", "a"])
  assert server.generate() == before
  trained.close()
