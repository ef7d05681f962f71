# SPDX-License-Identifier: Apache-2.0
"""What a process of gpu_session_cases.py does: holds one rank whose tensors are on the GPU."""

import torch

import reshard
from gpu_memory import engine_memory, gpu, on_gpu, read, sides
from small_models import values, vllm_slices


def refit(pipe, join):
  """Rank 0 trains, ranks 0 and 1 serve; says whether this rank has its slices after each refit."""
  group = reshard.join(**join)
  of, source, target, given = sides("moe")
  mine = on_gpu(given) if group.rank == 0 else None
  theirs = engine_memory(target)[group.rank]
  stream = gpu().stream()
  with reshard.Session(
    group, source=source, source_tensors=mine, target=target, target_tensors=theirs, stream=stream, verify="always"
  ) as session:
    for version in (1, 2):
      given = values(of, version)
      for name in mine or ():
        gpu().write(mine[name], given[name], stream)
      session.refit(version)
      got, want = read(theirs), vllm_slices(given, 2, group.rank)
      pipe.send(got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want))
    pipe.send(session.path)
  group.close()
