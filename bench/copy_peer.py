# SPDX-License-Identifier: Apache-2.0
"""The work of refit_bench --tensor as users write it by hand: gather the tensor, then copy slices of it.

  copy_peer.py --tensor 2048x768 --count N --from DIM:PARTS --to DIM:PARTS --way numpy|torch [--threads N]

The gathered tensor has one buffer that is reused, so measured rounds touch no new pages. Prints "ready", runs one round
per line of standard input and prints "done" after each, and finally prints one JSON object.
"""

import argparse
import json
import sys
import time

import numpy as np


def parts_of(whole, cut):
  """The slices of a tensor along a dimension: as even as possible, the first ones longer."""
  dim, parts = cut
  return np.array_split(whole, parts, axis=dim)


class Work:
  """`count` tensors that differ from each other, cut for the source and with room for the target."""

  def __init__(self, shape, count, source, target):
    rng = np.random.default_rng(1)
    self.base = rng.integers(0, 2**16, size=shape, dtype=np.uint16)
    self.source_cut, self.target_cut = source, target
    self.source = [
      [part.copy() for part in parts_of(self.tensor(i), source)] for i in range(count)
    ]
    self.target = [[np.zeros_like(p, order="C") for p in parts_of(self.base, target)] for _ in range(count)]
    for parts in self.target:
      for part in parts:
        part.fill(1)
    self.whole = np.ones_like(self.base)

  def tensor(self, i):
    return self.base ^ np.uint16(i % 2**16)

  def num_bytes(self):
    return sum(p.nbytes for parts in self.target for p in parts)

  def check(self):
    """Returns the bytes compared; ends the program if one is wrong."""
    for i, parts in enumerate(self.target):
      for mine, wanted in zip(parts, parts_of(self.tensor(i), self.target_cut)):
        if not np.array_equal(mine, wanted):
          sys.exit(f"copy_peer: tensor {i} is wrong")
    return self.num_bytes()


def numpy_round(work):
  """Returns a function that moves everything once."""

  def once():
    for source, target in zip(work.source, work.target):
      whole = source[0]
      if len(source) > 1:
        whole = np.concatenate(source, axis=work.source_cut[0], out=work.whole)
      for mine, part in zip(target, parts_of(whole, work.target_cut)):
        np.copyto(mine, part)

  return once


def torch_round(work, threads):
  import torch

  torch.set_num_threads(threads)

  def tensors(arrays):
    return [torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) for a in arrays]

  sources, targets = [tensors(x) for x in work.source], [tensors(x) for x in work.target]
  (kept,) = tensors([work.whole])
  from_dim, to_dim = work.source_cut[0], work.target_cut[0]

  def once():
    for source, target in zip(sources, targets):
      whole = torch.cat(source, dim=from_dim, out=kept) if len(source) > 1 else source[0]
      begin = 0
      for mine in target:
        mine.copy_(whole.narrow(to_dim, begin, mine.shape[to_dim]))
        begin += mine.shape[to_dim]

  return once


def cut(text):
  dim, parts = text.split(":")
  return int(dim), int(parts)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--tensor", required=True)
  parser.add_argument("--count", type=int, default=1)
  parser.add_argument("--from", dest="source", type=cut, required=True)
  parser.add_argument("--to", dest="target", type=cut, required=True)
  parser.add_argument("--way", choices=("numpy", "torch"), required=True)
  parser.add_argument("--threads", type=int, default=1)
  a = parser.parse_args()
  work = Work(tuple(int(n) for n in a.tensor.split("x")), a.count, a.source, a.target)
  once = torch_round(work, a.threads) if a.way == "torch" else numpy_round(work)
  once()
  print("ready", flush=True)
  seconds = []
  for _ in sys.stdin:
    begin = time.perf_counter()
    once()
    seconds.append(time.perf_counter() - begin)
    print("done", flush=True)
  result = {"seconds": seconds, "bytes": work.num_bytes(), "checked_bytes": work.check()}
  print(json.dumps({**result, "version": sys.modules[a.way].__version__}), flush=True)


if __name__ == "__main__":
  main()
