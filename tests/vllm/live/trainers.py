# SPDX-License-Identifier: Apache-2.0
"""Trainers in processes of their own: each rank runs trainer.py, or another program."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from server import environment

_HERE = Path(__file__).parent


class Trainer:
  """The ranks of one trainer, as processes. `server` and `workers` may be lists, of several engines."""

  def __init__(self, server, workers, text, size, model, folder, program="trainer.py", **more):
    self.job = uuid.uuid4().hex
    self.ranks = []
    for rank in range(size):
      options = {
        "server": [one.url for one in server] if isinstance(server, list) else server.url,
        "workers": workers,
        "text": text,
        "size": size,
        "rank": rank,
        "model": str(model),
        "url": f"file://{folder}",
        "job": self.job,
        "secret": self.job,
        "store": str(folder / f"store-{self.job}"),
        "more": more,
      }
      self.ranks.append(
        subprocess.Popen(
          [sys.executable, str(_HERE / program), json.dumps(options)],
          env=environment(),
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
        )
      )

  def hears(self, word):
    """The next line of every rank, which must begin with the word."""
    lines = [rank.stdout.readline() for rank in self.ranks]
    for rank, line in zip(self.ranks, lines, strict=True):
      if not line.startswith(word):
        self.kill()
        pytest.fail(f"'{line}' instead of '{word}':\n" + rank.stderr.read()[-3000:])
    return lines

  def say(self, *words):
    for rank in self.ranks:
      rank.stdin.write(" ".join(map(str, words)) + "\n")
      rank.stdin.flush()

  def update(self, *paths):
    self.say("update", *paths)
    return self.hears("updated")

  def begin(self, *paths):
    """Begins an update in the background, and waits until the weights have arrived."""
    self.say("begin", *paths)
    self.hears("begun")
    self.hears("arrived")

  def finish(self):
    """Has the server take them."""
    self.say("finish")
    return self.hears("updated")

  def check(self):
    """How many places of the engine differ from a fresh load, how many tensors and ranks were compared: as each rank says it."""
    self.say("check")
    return {tuple(map(int, line.split()[1:])) for line in self.hears("checked")}

  def ends(self):
    """Waits until every rank has ended; what they said on stderr."""
    return [rank.communicate()[1] for rank in self.ranks]

  def kill(self):
    for rank in self.ranks:
      rank.kill()

  def close(self):
    for rank in self.ranks:
      if not rank.stdin.closed:
        rank.stdin.close()
      rank.wait()
