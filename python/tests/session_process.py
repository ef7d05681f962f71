# SPDX-License-Identifier: Apache-2.0
"""What a process of a test does: holds one rank of a session, and stops where the test says."""

import numpy as np

import reshard

PHASES = ("begin", "transfer", "check", "commit", "committed")


def layouts():
  """Rank 0 trains, ranks 1 and 2 serve; no torch, so that processes start quickly."""
  model = reshard.Model.from_tensors("small", {f"layer.{i}.weight": ((64, 32), "F32") for i in range(8)})
  source = reshard.layout("hf", model)
  builder = reshard.LayoutBuilder("engine", model)
  for i in range(8):
    name = f"layer.{i}.weight"
    for rank in (1, 2):
      rows = (rank - 1) * 32
      box = reshard.Box([(rows, rows + 32), (0, 32)])
      builder.add([rank], name, (32, 32), "F32", [reshard.PlacedBox(name, box, (0, 0))])
  return source, builder.finish()


def memory(layout, rank, fill):
  if rank not in layout.ranks:
    return None
  return {t.name: np.full(t.shape, fill, np.float32) for t in layout.local(rank)}


def session_of(group, **options):
  source, target = layouts()
  mine, theirs = memory(source, group.rank, 1), memory(target, group.rank, 0)
  session = reshard.Session(group, source=source, source_tensors=mine, target=target, target_tensors=theirs, **options)
  return session, mine, theirs


def stop_in_a_phase(pipe, join, stopped, phase):
  """Every rank says that it is in refit 2. Rank `stopped` says when it enters the phase of refit 2, and waits for word from the test there.

  Sends the exception's type, its text and the version that this rank's target then has.
  """
  group = reshard.join(**join)
  session, mine, _ = None, None, None
  refits = 0

  def on_phase(entered):
    if entered == "begin" and refits == 2:
      pipe.send("refits")
    if group.rank == stopped and entered == phase and refits == 2:
      pipe.send("there")
      pipe.recv()

  session, mine, theirs = session_of(group, on_phase=on_phase, timeout=30)
  try:
    for refits in (1, 2):
      if mine is not None:
        for tensor in mine.values():
          tensor.fill(refits)
      session.refit(refits)
    outcome = ("none", "")
  except BaseException as error:
    outcome = (type(error).__name__, str(error))
  now = session.target_version()
  if now.whole and theirs is not None:
    assert all(np.all(tensor == now.version) for tensor in theirs.values())
  pipe.send((*outcome, now.state, now.version))
  session.close()
  group.close()
