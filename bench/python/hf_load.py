# SPDX-License-Identifier: Apache-2.0
"""One rank's part of a checkpoint into memory: reshard.hf, safetensors' slices, and transformers.

    python bench/python/hf_load.py CHECKPOINT [LAYOUT] [ROUNDS]

The ways take turns, each first as often as the others; each round loads the same rank, warm (from the
page cache) and cold (after the cache has been asked to drop the files). The ceiling is a plain read of as
many bytes by as many threads. transformers loads the whole model, which is all it can do; it maps files,
so its parameters are cloned into memory, as those of the others are. Results are checked against each
other.
"""

import mmap
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import reshard
import reshard.hf
import torch
import transformers
from safetensors import safe_open


def by_reshard(path, layout, rank):
  return reshard.hf.load(path, layout, rank)


def by_slices(path, layout, rank):
  """What a loader does with safetensors alone: the boxes of this rank, one slice each."""
  files = {}
  for file in sorted(Path(path).glob("*.safetensors")):
    opened = safe_open(file, "pt")
    files |= dict.fromkeys(opened.keys(), opened)
  out = {}
  for t in layout.local(rank):
    pieces = []
    dtype = None
    for f in t.fragments:
      view = files[f.tensor].get_slice(f.tensor)
      piece = view[tuple(slice(*i) for i in f.box)]
      dtype = piece.dtype
      pieces.append((piece, f.offset, f.strides))
    result = torch.zeros(tuple(t.index_shape), dtype=dtype)
    flat = result.view(-1)
    for piece, offset, strides in pieces:
      torch.as_strided(flat, tuple(piece.shape), tuple(strides), offset).copy_(piece)
    out[t.name] = result.view(tuple(t.shape))
  return out


def by_transformers(path, layout, rank):
  module = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
  return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def by_reading(path, layout, rank):
  """The ceiling: as many bytes of the files, in pieces of 16 MiB, to new memory."""
  size, piece = layout.local_bytes(rank), 16 << 20
  memory = mmap.mmap(-1, size)
  view = memoryview(memory)
  places = [(file, at) for file in sorted(Path(path).glob("*.safetensors")) for at in range(0, file.stat().st_size, piece)]
  # Spread over the files, as a rank's tensors are.
  count = -(-size // piece)
  chosen = [places[i * len(places) // count] for i in range(count)]

  def read(number):
    file, at = chosen[number]
    begin = number * piece
    with open(file, "rb") as f:
      os.preadv(f.fileno(), [view[begin : min(begin + piece, size)]], at)

  with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    list(pool.map(read, range(count)))
  view.release()
  return memory


def drop_cache(path):
  for file in Path(path).glob("*.safetensors"):
    with open(file, "rb") as f:
      os.fsync(f.fileno())
      os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
  path = sys.argv[1]
  text = sys.argv[2] if len(sys.argv) > 2 else "vllm:tp=4"
  rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
  layout = reshard.layout(text, reshard.open_model(path))
  rank = max(layout.ranks)
  held = layout.local_bytes(rank)
  whole = layout.model.tensors.bytes
  ways = {
    "reshard.hf": by_reshard,
    "safetensors slices": by_slices,
    "transformers": by_transformers,
    "ceiling (read)": by_reading,
  }
  transformers.utils.logging.disable_progress_bar()
  theirs, ours = by_slices(path, layout, rank), by_reshard(path, layout, rank)
  assert all(torch.equal(theirs[n].view(torch.uint8), ours[n].view(torch.uint8)) for n in ours)
  del theirs, ours
  seconds = {}
  for turn in range(rounds):
    order = list(ways.items())
    order = order[turn % len(order) :] + order[: turn % len(order)]
    for cold in (False, True):
      for name, way in order:
        if cold:
          drop_cache(path)
        begin = time.perf_counter()
        result = way(path, layout, rank)
        seconds.setdefault((cold, name), []).append(time.perf_counter() - begin)
        del result
  print(f"{text}, rank {rank}: {held / 1e6:.0f} of {whole / 1e6:.0f} MB; {rounds} rounds, medians")
  for (cold, name), times in sorted(seconds.items()):
    size = whole if name == "transformers" else held
    middle = statistics.median(times)
    print(
      f"  {'cold' if cold else 'warm'}  {name:19} {middle:7.3f} s  {size / middle / 1e9:6.2f} GB/s"
      f"  (from {min(times):.3f} to {max(times):.3f})"
    )


if __name__ == "__main__":
  main()
