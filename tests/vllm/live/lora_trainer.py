# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer of a checkpoint with a LoRA adapter, both cut over the ranks as PEFT's modules name them.

Says "ready" when it has joined, then obeys lines on its input: "update BASE ADAPTER" makes the weights and the factors
those of two folders, and updates the server.
"""

import argparse
import json
import sys
from pathlib import Path

import adapters
import reshard
import reshard.lora
import reshard.vllm


def values(base, adapter):
  """By the names that a layout has: factors with the adapter's name in them."""
  factors = adapters.read(Path(adapter))
  named = {k.removeprefix("base_model.model.").replace(".weight", ".policy.weight"): v for k, v in factors.items()}
  return adapters.read(Path(base)) | named


class Rank:
  """What one rank holds: of each tensor a run of rows, or of columns where its name has an odd length."""

  def __init__(self, base, adapter, rank, size):
    self._size, self._rank = size, rank
    tensors = values(base, adapter)
    model = reshard.Model.from_tensors("adapted", {k: (list(v.shape), v.dtype) for k, v in sorted(tensors.items())})
    builder = reshard.LayoutBuilder("trainer", model)
    for name, tensor in sorted(tensors.items()):
      for r in range(size):
        box = self._box(name, tensor, r)
        shape = [end - begin for begin, end in box]
        builder.add([r], name, shape, tensor.dtype, parts=[reshard.PlacedBox(name, box, [0] * len(box))])
    self.layout = builder.finish()
    self.tensors = {name: self._part(name, tensor) for name, tensor in tensors.items()}

  def _box(self, name, tensor, rank):
    box = [(0, n) for n in tensor.shape]
    dim = len(name) % 2 % tensor.dim()
    step = -(-tensor.shape[dim] // self._size)
    box[dim] = (min(rank * step, tensor.shape[dim]), min((rank + 1) * step, tensor.shape[dim]))
    return box

  def _part(self, name, tensor):
    return tensor[tuple(slice(*bounds) for bounds in self._box(name, tensor, self._rank))].contiguous()

  def load(self, base, adapter):
    for name, tensor in values(base, adapter).items():
      self.tensors[name].copy_(self._part(name, tensor))


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("options")
  args = argparse.Namespace(**json.loads(parser.parse_args().options))
  held = Rank(args.model, args.more.pop("adapter"), args.rank, args.size)
  client = reshard.vllm.HttpClient(args.server, timeout=1800) if args.rank == 0 else None
  trainer = reshard.vllm.Trainer(
    held.layout,
    held.tensors,
    client=client,
    rank=args.rank,
    size=args.size,
    url=args.url,
    job=args.job,
    secret=args.secret,
    workers=args.workers,
    **{"deadline": 1200.0} | args.more,
  )
  print("ready", flush=True)
  for line in sys.stdin:
    held.load(*line.split()[1:])
    report = trainer.update()
    print(f"updated {trainer.version} {report.sent}", flush=True)
  trainer.close()


if __name__ == "__main__":
  main()
