# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer of a model and its draft model: the model cut as Megatron does, the draft model by rows.

Says "ready" when it has joined, then obeys lines on its input: "update MODEL DRAFT" makes the weights those of two
folders, and updates the server.
"""

import argparse
import json
import sys
from pathlib import Path

import adapters
import reshard
import reshard.hf
import reshard.vllm


class Rows:
  """A checkpoint cut by rows over ranks."""

  def __init__(self, path, rank, size):
    self._rank, self._size = rank, size
    whole = adapters.read(Path(path))
    model = reshard.Model.from_tensors("draft", {k: (list(v.shape), v.dtype) for k, v in sorted(whole.items())})
    builder = reshard.LayoutBuilder("rows", model)
    for name, tensor in sorted(whole.items()):
      for r in range(size):
        box = [self._rows(tensor, r), *[(0, n) for n in tensor.shape[1:]]]
        shape = [end - begin for begin, end in box]
        builder.add([r], name, shape, tensor.dtype, parts=[reshard.PlacedBox(name, box, [0] * len(box))])
    self.layout = builder.finish()
    self.tensors = {name: tensor[slice(*self._rows(tensor, rank))].clone() for name, tensor in whole.items()}

  def _rows(self, tensor, rank):
    step = -(-tensor.shape[0] // self._size)
    return min(rank * step, tensor.shape[0]), min((rank + 1) * step, tensor.shape[0])

  def load(self, path):
    for name, tensor in adapters.read(Path(path)).items():
      self.tensors[name].copy_(tensor[slice(*self._rows(tensor, self._rank))])


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("options")
  args = argparse.Namespace(**json.loads(parser.parse_args().options))
  layout = reshard.layout(args.text, reshard.open_model(args.model))
  tensors = reshard.hf.load(args.model, layout, args.rank)
  draft = Rows(args.more.pop("draft"), args.rank, args.size)
  client = reshard.vllm.HttpClient(args.server, timeout=1800) if args.rank == 0 else None
  trainer = reshard.vllm.Trainer(
    layout,
    tensors,
    draft=reshard.vllm.Draft(draft.layout, draft.tensors),
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
    _, model, path = line.split()
    reshard.hf.load(model, layout, args.rank, tensors)
    draft.load(path)
    trainer.update()
    print(f"updated {trainer.version}", flush=True)
  trainer.close()


if __name__ == "__main__":
  main()
