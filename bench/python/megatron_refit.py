# SPDX-License-Identifier: Apache-2.0
"""A refit between modules of Megatron-Core: reshard.megatron, both ways in, beside its own gloo service.

    python bench/python/megatron_refit.py [HIDDEN] [LAYERS] [ROUNDS] [PROCESSES]

Two or four processes on this host hold a dense GPT model (bf16) twice, by real modules of Megatron-Core. The ways
take turns on the same modules, between barriers of all ranks; each is called once before, so that plans are
made; what arrived is compared byte by byte after each. Megatron's service asks for CUDA streams and pinned
memory, which are replaced by ones that do nothing and by plain memory. "tuned" is the same with an
allocator that keeps what it frees, in its favour. The ceiling is a plain copy of the busiest rank's bytes
in its own memory. Needs megatron-core.
"""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/megatron"))

# By number of processes.
CASES = {
  2: [("tp=2", "tp=1"), ("pp=2", "tp=2"), ("tp=2", "pp=2")],
  4: [("tp=2", "tp=4"), ("tp=2,pp=2", "tp=2"), ("tp=4", "tp=1")],
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt()


@dataclasses.dataclass(frozen=True)
class Sizes:
  hidden: int
  layers: int
  rounds: int
  processes: int


def model(sizes: Sizes) -> Any:
  """A dense GPT model with grouped queries."""
  import models

  heads = max(sizes.hidden // 128, 8)
  larger = {
    "hidden_size": sizes.hidden,
    "ffn_hidden_size": 4 * sizes.hidden,
    "num_layers": sizes.layers,
    "num_attention_heads": heads,
    "num_query_groups": 4,
    "kv_channels": sizes.hidden // heads,
  }
  small = models.MODELS["llama"]
  return models.Model(small.hf, small.megatron | larger)


def ways(trainer: Any, engine: Any) -> dict[str, Callable[[], object]]:
  from megatron.core import resharding

  import reshard.megatron

  service = reshard.megatron.CopyService()
  return {
    "swap_model_weights of reshard": lambda: reshard.megatron.swap_model_weights(trainer, engine, "gloo"),
    "Megatron's plan, CopyService": lambda: resharding.reshard_model_weights(trainer, engine, service=service),
    "Megatron": lambda: resharding.swap_model_weights(trainer, engine, "gloo"),
  }


def timed(way: Callable[[], object]) -> float:
  """Seconds until the last rank has returned."""
  import torch.distributed as dist

  dist.barrier()
  begin = time.perf_counter()
  way()
  dist.barrier()
  return time.perf_counter() - begin


def tune_allocator() -> None:
  """Lets malloc keep freed memory, as a tuned job would: Megatron's service allocates in each refit."""
  libc = ctypes.CDLL(None)
  libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
  libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def compare(sizes: Sizes, source: str, target: str) -> dict[str, list[float]]:
  import gloo_rank
  import refit_rank
  import torch
  from building import build
  from megatron.core.process_groups_config import ProcessGroupCollection

  both = []
  for text in (source, target):
    with gloo_rank.parallel(text):
      modules = build(model(sizes), text, padded=256)
      for module in modules:
        module.pg_collection = ProcessGroupCollection.use_mpu_process_groups()
      both.append(modules)
  trainer, engine = both
  refit_rank.fill(trainer, 1)
  seconds: dict[str, list[float]] = {}
  calls = ways(trainer, engine)
  for turn in range(sizes.rounds + 1):
    for name, call in calls.items():
      refit_rank.clear(engine)
      took = timed(call)
      if turn == 0:
        wrong = refit_rank.wrong(engine, 1)
        expected = {n: t.clone() for n, t in refit_rank.module_tensors(engine).items()}
        assert not wrong, (name, wrong[:3])
        continue
      seconds.setdefault(name, []).append(took)
      for tensor, value in refit_rank.module_tensors(engine).items():
        assert torch.equal(value.view(torch.uint8), expected[tensor].view(torch.uint8)), (name, tensor)
  held = sum(t.numel() * t.element_size() for t in refit_rank.module_tensors(engine).values())
  first, second = torch.ones(held, dtype=torch.uint8), torch.zeros(held, dtype=torch.uint8)
  seconds["plain copy"] = [timed(lambda: second.copy_(first)) for _ in range(sizes.rounds)]
  seconds["bytes"] = [float(held)]
  return seconds


def run(rank: int, store: str, sizes: Sizes, tuned: bool, results: Any) -> None:
  import torch
  import torch.distributed as dist

  torch.set_num_threads(1)
  if tuned:
    tune_allocator()
  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=sizes.processes)
  for source, target in CASES[sizes.processes]:
    found = compare(sizes, source, target)
    if rank == 0:
      results.send((source, target, found))
  dist.barrier()


def main() -> None:
  given = [int(argument) for argument in sys.argv[1:]]
  sizes = Sizes(*(given + [2048, 8, 5, 2][len(given) :]))
  context = multiprocessing.get_context("spawn")
  for tuned in (False, True):
    mine, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
      arguments = (f"{folder}/store", sizes, tuned, theirs)
      started = [context.Process(target=run, args=(rank, *arguments), daemon=True) for rank in range(sizes.processes)]
      for process in started:
        process.start()
      theirs.close()
      for _ in CASES[sizes.processes]:
        source, target, found = mine.recv()
        held = found.pop("bytes")[0]
        allocator = ", allocator tuned" if tuned else ""
        print(f"{source} to {target}{allocator}: {held / 1e6:.0f} MB on rank 0; {sizes.rounds} rounds")
        theirs_median = statistics.median(found["Megatron"])
        for name, times in found.items():
          middle = statistics.median(times)
          print(f"  {name:32}{min(times) * 1e3:10.1f} ms least{middle * 1e3:10.1f} ms median{theirs_median / middle:8.1f} x")
      for process in started:
        process.join()


if __name__ == "__main__":
  main()
