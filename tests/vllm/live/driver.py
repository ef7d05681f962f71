# SPDX-License-Identifier: Apache-2.0
"""What the ranks of every trainer do: join a server, say "ready", and obey lines on their input."""

import argparse
import json
import sys

import reshard
import reshard.vllm


def options():
  """What `trainers.Trainer` says to a rank."""
  parser = argparse.ArgumentParser()
  parser.add_argument("options")
  return argparse.Namespace(**json.loads(parser.parse_args().options))


class Cut:
  """Whole tensors, cut over ranks: each into runs of rows, or of columns where its name has an odd length."""

  def __init__(self, whole, rank, size):
    self._rank, self._size = rank, size
    model = reshard.Model.from_tensors("whole", {k: (list(v.shape), v.dtype) for k, v in sorted(whole.items())})
    builder = reshard.LayoutBuilder("cut", model)
    for name, tensor in sorted(whole.items()):
      for r in range(size):
        box = self._box(name, tensor, r)
        shape = [end - begin for begin, end in box]
        builder.add([r], name, shape, tensor.dtype, parts=[reshard.PlacedBox(name, box, [0] * len(box))])
    self.layout = builder.finish()
    self.tensors = {name: self._part(name, tensor) for name, tensor in whole.items()}

  def _box(self, name, tensor, rank):
    box = [(0, n) for n in tensor.shape]
    dim = len(name) % 2 % tensor.dim()
    step = -(-tensor.shape[dim] // self._size)
    box[dim] = (min(rank * step, tensor.shape[dim]), min((rank + 1) * step, tensor.shape[dim]))
    return box

  def _part(self, name, tensor):
    return tensor[tuple(slice(*bounds) for bounds in self._box(name, tensor, self._rank))].clone().contiguous()

  def load(self, whole):
    """Makes the tensors those of other whole ones."""
    for name, tensor in whole.items():
      self.tensors[name].copy_(self._part(name, tensor))


def serve(args, layout, tensors, load, **more):
  """Joins, and for each line "update WORDS" calls load(*WORDS), which makes the tensors those of what the words name, and
  updates the server. Answers "updated VERSION BYTES", the bytes that this rank sent. The line "check" compares the server with a
  fresh load; the answer is "checked DIFFERENCES TENSORS RANKS". "begin WORDS" is an update in the background: the answer is "begun"
  when the tensors may be written, and "arrived" comes when the weights have; "finish" has the server take them."""
  # A machine may be busy with other things.
  client = None
  if args.rank == 0:
    clients = [reshard.vllm.HttpClient(url, timeout=1800) for url in ([args.server] if isinstance(args.server, str) else args.server)]
    client = clients if len(clients) > 1 else clients[0]
  trainer = reshard.vllm.Trainer(
    layout,
    tensors,
    client=client,
    rank=args.rank,
    size=args.size,
    url=args.url,
    job=args.job,
    secret=args.secret,
    workers=args.workers,
    **{"deadline": 1200.0} | more | args.more,
  )
  print("ready", flush=True)
  for line in sys.stdin:
    if line.split() == ["check"]:
      report = trainer.check()
      print(f"checked {len(report.differences)} {report.tensors} {len(report.ranks)}", flush=True)
      continue
    if line.split() == ["finish"]:
      report = pending.result()
      print(f"updated {trainer.version} {report.sent}", flush=True)
      continue
    load(*line.split()[1:])
    if line.startswith("begin"):
      pending = trainer.update_async()
      pending.wait_sources_free()
      for tensor in tensors.values():  # as an optimiser would
        tensor.zero_()
      print("begun", flush=True)
      pending.wait_arrived()
      print("arrived", flush=True)
      continue
    report = trainer.update()
    print(f"updated {trainer.version} {report.sent}", flush=True)
  trainer.close()
