# SPDX-License-Identifier: Apache-2.0
"""One tensor from rank 0 to all others over gloo: torch's broadcast, and a chain in chunks, in turn.

  torch_chain.py BYTES ROUNDS [CHUNK]     with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set

Rank 0 prints one line of JSON: the seconds of each until the last rank has everything.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def chain(tensor, rank, world, chunk):
  """Each rank passes a chunk on while it receives the next."""
  sends = []
  for part in tensor.split(chunk):
    if rank > 0:
      dist.recv(part, rank - 1)
    if rank + 1 < world:
      sends.append(dist.isend(part, rank + 1))
  for send in sends:
    send.wait()


def main(num_bytes, rounds, chunk=1 << 20):
  dist.init_process_group("gloo")
  rank, world = dist.get_rank(), dist.get_world_size()
  value = 7 if rank == 0 else 0
  tensor = torch.full((num_bytes,), value, dtype=torch.uint8)
  seconds = {"broadcast": [], "chain": []}
  for _ in range(rounds):
    for name, ways in (("broadcast", lambda: dist.broadcast(tensor, 0)), ("chain", lambda: chain(tensor, rank, world, chunk))):
      if rank > 0:
        tensor.zero_()
      dist.barrier()
      begin = time.perf_counter()
      ways()
      dist.barrier()
      seconds[name].append(time.perf_counter() - begin)
      assert bool((tensor == 7).all()), f"rank {rank}: wrong bytes by {name}"
  if rank == 0:
    print(json.dumps({"seconds_" + name: times for name, times in seconds.items()}))
  dist.destroy_process_group()


if __name__ == "__main__":
  main(*map(int, sys.argv[1:]))
