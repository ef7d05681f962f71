# SPDX-License-Identifier: Apache-2.0
"""A process of a fleet that does what a test says, over a pipe, and the weights that it holds."""

import os
import signal
import time

import numpy as np

import reshard
from reshard.fleet import Fleet

SHAPE = (64, 48)


def model():
  return reshard.Model.from_tensors("small", {f"layer.{i}.weight": (SHAPE, "F32") for i in range(6)})


def values(layer, version):
  """The values of a tensor in a version; no two tensors and versions share one."""
  return (np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE) * 64 + layer) * 8 + version


def layout_file(folder, name, ranks, by_columns):
  """The layout of a unit that cuts each tensor in as many parts as it has ranks; its specification."""
  builder = reshard.LayoutBuilder(name, model())
  for layer in range(6):
    for rank in range(ranks):
      cut = SHAPE[1 if by_columns else 0] // ranks
      part = (rank * cut, (rank + 1) * cut)
      box = reshard.Box([(0, SHAPE[0]), part] if by_columns else [part, (0, SHAPE[1])])
      shape = tuple(end - begin for begin, end in (box[0], box[1]))
      tensor = f"layer.{layer}.weight"
      builder.add([rank], tensor, shape, "F32", [reshard.PlacedBox(tensor, box, (0, 0))])
  path = os.path.join(folder, f"{name}.json")
  builder.finish().save(path)
  return f"explicit:{path}"


def part_of(layer, version, spec, rank):
  """The values of this rank's part of a tensor."""
  (held,) = [t for t in reshard.layout(spec, model()).local(rank) if t.name == f"layer.{layer}.weight"]
  rows, columns = held.fragments[0].box
  return values(layer, version)[rows[0] : rows[1], columns[0] : columns[1]]


class Unit:
  """The tensors of one rank of a unit."""

  def __init__(self, spec, rank):
    self.spec, self.rank = spec, rank
    shapes = {t.name: tuple(t.shape) for t in reshard.layout(spec, model()).local(rank)}
    self.copies = [{name: np.zeros(shape, np.float32) for name, shape in shapes.items()} for _ in range(2)]

  def train(self, version):
    for layer in range(6):
      self.copies[0][f"layer.{layer}.weight"][:] = part_of(layer, version, self.spec, self.rank)

  def wrong(self, version, copy):
    """The names of tensors that are not of the version."""
    return [
      f"layer.{layer}.weight"
      for layer in range(6)
      if not np.array_equal(self.copies[copy][f"layer.{layer}.weight"], part_of(layer, version, self.spec, self.rank))
    ]


def whole_once(published):
  """Publishes version 7 by a refit of one process; returns it."""
  (group,) = reshard.local(1)
  layout = reshard.layout("hf", model())
  source, target = (reshard.RankBuffers.allocate(layout, [0]) for _ in range(2))
  with reshard.Session(
    group, source=layout, source_tensors=source, target=layout, target_tensors=target, published=published
  ) as session:
    session.refit(7)
  return published.target_version().version


def received(fleet, unit):
  """The next version, or a text with what is wrong."""
  version = fleet.receive()
  wrong = unit.wrong(version, fleet.buffer)
  if version != fleet.version or wrong:
    return f"version {version}, held {fleet.version}: {wrong} are wrong"
  return version


def serve_pipe(pipe, place, url, secret, doubled, transport="shm", timeout=30.0):
  """Joins, says "joined", and does what it is told until it is told nothing more.

  "refit", version, engines   the trainer's; answers with the report, or the error's type and text
  "receive"           takes the next version; answers with it, and checks its bytes
  "die", phase        is killed when its next refit enters the phase
  "stop", phase       is stopped there
  "tell", phase       says "in PHASE" there, and waits for word
  "fail", phase       its next refit fails there
  "follow", faults    receives for ever, and answers as "receive" does each time. Faults: {(number of
                      its refit, phase): "die", "stop", or seconds of delay}
  """
  unit = Unit(place["layout"], place["rank"])
  todo, faults, refits = {}, {}, 0

  def on_phase(phase):
    nonlocal refits
    refits += phase == "begin"
    act = todo.pop(phase, faults.pop((refits, phase), None))
    if isinstance(act, float):
      time.sleep(act)
      return
    if act in ("fail", "fail again"):
      raise RuntimeError("the engine is full")
    if act == "tell":
      pipe.send(f"in {phase}")
      pipe.recv()
    elif act is not None:
      pipe.send(f"in {phase}")
      os.kill(os.getpid(), signal.SIGKILL if act == "die" else signal.SIGSTOP)

  options = {"buffering": "doubled" if doubled else "in_place", "on_phase": on_phase, "verify": "always"}
  back = unit.copies[1] if doubled and place["role"] == "engine" else None
  options |= {"transport": transport, "timeout": timeout, "back_tensors": back}
  with Fleet(url, secret=secret, model=model(), tensors=unit.copies[0], **place, **options) as fleet:
    pipe.send("joined")
    while True:
      try:
        told, *arguments = pipe.recv()
      except EOFError:
        return
      if told == "leave":
        return
      if told in ("refit", "receive", "follow", "faults"):
        do(pipe, fleet, unit, faults, told, arguments)
      else:
        todo[arguments[0]] = told


def do(pipe, fleet, unit, faults, told, arguments):
  """What serve_pipe() is told."""
  try:
    if told == "refit":
      unit.train(arguments[0])
      report = fleet.refit(arguments[0], engines=arguments[1] if len(arguments) > 1 else 0)
      pipe.send((report.version, report.engines, report.left_behind, report.epoch, report.rounds))
    elif told == "receive":
      pipe.send(received(fleet, unit))
    else:
      faults.update(arguments[0])
    while told == "follow":
      pipe.send(received(fleet, unit))
  except reshard.Error as error:
    pipe.send((type(error).__name__, str(error)))
