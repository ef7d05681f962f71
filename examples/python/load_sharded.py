# SPDX-License-Identifier: Apache-2.0
"""Loads a checkpoint straight into the tensors of one rank of any layout, and saves it again.

    python examples/python/load_sharded.py CHECKPOINT "megatron:tp=2,pp=2" /tmp/saved

Each rank would do so in a process of its own; here one process plays all of them.
"""

import argparse

import reshard
import reshard.hf


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("checkpoint")
  parser.add_argument("layout")
  parser.add_argument("output")
  args = parser.parse_args()

  layout = reshard.layout(args.layout, reshard.open_model(args.checkpoint))
  tensors = {}
  for rank in layout.ranks:
    tensors[rank] = reshard.hf.load(args.checkpoint, layout, rank)
    print(f"rank {rank}: {len(tensors[rank])} tensors, {layout.local_bytes(rank)} bytes")

  report = reshard.hf.save(args.output, layout, tensors)
  print(f"{args.output}: {report.bytes} bytes in {report.files} files")
  print(reshard.verify(args.checkpoint, args.output))


if __name__ == "__main__":
  main()
