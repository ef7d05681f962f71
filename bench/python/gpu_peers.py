# SPDX-License-Identifier: Apache-2.0
"""A refit between ranks whose tensors are on one GPU: reshard, torch's copy_ per piece, torch._foreach_copy_.

    python bench/python/gpu_peers.py [--device cuda] [--model M] [--layers N] [--from L] [--to L] [--rounds N]
                                     [--rows N]

The pieces are those of reshard's plan, as views of both tensors that are made before: what a framework
that slices and copies each tensor does, without the time of its slicing. The ways take turns, timed by
events on torch's stream; a copy of as many bytes between two tensors is the ceiling. What each way wrote
is compared byte by byte with what reshard wrote. Afterwards BF16 matrices of N rows are converted to
MXFP8: by reshard, by torch (Megatron's reference arithmetic: a power of two for each 32 values, rounded
up, then a cast), and by Megatron's own kernel where megatron-core and triton are installed. With
`--device cpu` it measures nothing of interest, but verifies the same.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import reshard
import torch

Way = Callable[[], object]
Tensors = dict[int, dict[str, torch.Tensor]]
DTYPES = {reshard.DType.bf16: torch.bfloat16, reshard.DType.f16: torch.float16, reshard.DType.f32: torch.float32}


def tensors_of(layout: reshard.Layout, device: str) -> Tensors:
  """Local tensors of all ranks, with random bits."""
  made: Tensors = {}
  for rank in layout.ranks:
    made[rank] = {}
    for local in layout.local(rank):
      like = torch.empty(tuple(local.shape), dtype=DTYPES[local.dtype], device=device)
      like.view(torch.uint8).random_(0, 64)  # Finite, whatever the dtype.
      made[rank][local.name] = like
  return made


def overlap(a: Any, b: Any) -> list[tuple[int, int]] | None:
  """The box in both, as (begin, end) of each dimension."""
  box = [(max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True)]
  return box if all(begin < end for begin, end in box) else None


class Side:
  """Views of boxes of canonical tensors in the local tensors of a layout."""

  def __init__(self, layout: reshard.Layout, tensors: Tensors) -> None:
    self.tensors = tensors
    self.fragments: dict[tuple[int, str], list[tuple[str, Any]]] = {}
    for rank in layout.ranks:
      for local in layout.local(rank):
        for fragment in local.fragments:
          self.fragments.setdefault((rank, fragment.tensor), []).append((local.name, fragment))

  def pieces(self, rank: int, tensor: str, box: Any) -> list[tuple[list[tuple[int, int]], str, Any]]:
    found = []
    for name, fragment in self.fragments.get((rank, tensor), []):
      if (both := overlap(box, fragment.box)) is not None:
        found.append((both, name, fragment))
    return found

  def view(self, rank: int, name: str, fragment: Any, box: list[tuple[int, int]]) -> torch.Tensor:
    flat = self.tensors[rank][name].view(-1)
    begins = [begin - of[0] for (begin, _), of in zip(box, fragment.box, strict=True)]
    offset = fragment.offset + sum(b * s for b, s in zip(begins, fragment.strides, strict=True))
    return flat.as_strided([end - begin for begin, end in box], fragment.strides, offset)


def pairs_of(plan: reshard.Plan, source: Side, target: Side) -> list[tuple[torch.Tensor, torch.Tensor]]:
  """(to, from) of all pieces of a plan."""
  pairs = []
  for rank in plan.target.ranks:
    part = plan.rank(rank)
    for transfer in (*part.recvs, *part.locals):
      for box, name, fragment in target.pieces(rank, transfer.tensor, transfer.box):
        src = int(transfer.src)
        for both, src_name, src_fragment in source.pieces(src, transfer.tensor, box):
          pairs.append((target.view(rank, name, fragment, both), source.view(src, src_name, src_fragment, both)))
  return pairs


class Clock:
  """Seconds of work on torch's current stream, or of the host."""

  def __init__(self, device: str) -> None:
    self.gpu = device != "cpu"

  def seconds(self, way: Way) -> float:
    if not self.gpu:
      begin = time.perf_counter()
      way()
      return time.perf_counter() - begin
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    way()
    end_event.record()
    end_event.synchronize()
    return begin_event.elapsed_time(end_event) / 1e3


def in_turn(ways: dict[str, Way], rounds: int, clock: Clock) -> dict[str, list[float]]:
  seconds: dict[str, list[float]] = {name: [] for name in ways}
  for number in range(rounds + 1):  # The first warms up.
    for name, way in ways.items():
      took = clock.seconds(way)
      if number > 0:
        seconds[name].append(took)
  return seconds


def print_rows(what: str, size: int, seconds: dict[str, list[float]]) -> None:
  """`size`: bytes that each way delivers."""
  ours = statistics.median(seconds["reshard"])
  print(f"{what}: {size / 1e9:.2f} GB")
  for name, took in seconds.items():
    median = statistics.median(took)
    print(
      f"  {name:24} median {median * 1e3:9.3f} ms, {size / median / 1e9:8.1f} GB/s, "
      f"min {min(took) * 1e3:9.3f} ms; reshard is {median / ours:5.2f} times as fast"
    )


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
  return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def refits(given: argparse.Namespace) -> None:
  model = reshard.open_model(given.model, layers=given.layers)
  trainer, engine = reshard.layout(given.source, model), reshard.layout(given.target, model)
  source, target = tensors_of(trainer, given.device), tensors_of(engine, given.device)
  plan = reshard.plan(trainer, engine)
  refit = reshard.InProcessRefit(plan, reshard.RankBuffers(trainer, source), reshard.RankBuffers(engine, target))
  pairs = pairs_of(plan, Side(trainer, source), Side(engine, target))
  size = sum(to.numel() * to.element_size() for to, _ in pairs)
  refit.run()
  expected = {(r, n): t.clone() for r, tensors in target.items() for n, t in tensors.items()}

  def by_copy() -> None:
    for to, of in pairs:
      to.copy_(of)

  def by_foreach() -> None:
    torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])

  ways: dict[str, Way] = {
    "reshard": refit.run,
    "torch copy_ per piece": by_copy,
    "torch._foreach_copy_": by_foreach,
  }
  for name, way in ways.items():
    for to, _ in pairs:
      to.zero_()
    way()
    if not all(same_bytes(target[r][n], t) for (r, n), t in expected.items()):
      sys.exit(f"gpu_peers: {name} wrote other bytes than reshard")
  plain = [torch.zeros(size, dtype=torch.uint8, device=given.device) for _ in range(2)]
  ways["a plain copy"] = lambda: plain[0].copy_(plain[1])
  seconds = in_turn(ways, given.rounds, Clock(given.device))
  print_rows(f"{given.model}, {given.source} to {given.target}, {len(pairs):,} pieces", size, seconds)


def by_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
  """MXFP8 of BF16 by operations of torch: data, and a scale byte for each 32 values."""
  blocks = x.float().view(*x.shape[:-1], -1, 32)
  amax = blocks.abs().amax(-1).clamp(min=2.0**-126)
  exponent = torch.ceil(torch.log2(amax / 448)).clamp(-127, 127)
  data = (blocks / torch.exp2(exponent).unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn)
  return data.view(x.shape), (exponent + 127).to(torch.uint8)


def quantisers(given: argparse.Namespace) -> None:
  matrix = torch.randn(given.rows, 4096, device=given.device, dtype=torch.bfloat16)
  made = reshard.quantise(matrix, "mxfp8")
  ours, scales = made.data.torch(), made.scales.torch()
  data, _ = by_torch(matrix)
  mine = ours.view(torch.uint8).view(-1)
  differ = int((mine != data.view(torch.uint8).view(-1)).sum())
  if differ > matrix.numel() // 100:  # log2() in float rounds at powers of two.
    sys.exit(f"gpu_peers: torch's MXFP8 differs from reshard's in {differ} of {matrix.numel()} bytes")
  ways: dict[str, Way] = {
    "reshard": lambda: reshard.quantise(matrix, "mxfp8", data=ours, scales=scales),
    "torch, operation by operation": lambda: by_torch(matrix),
  }
  if given.device != "cpu":
    try:
      kernel = importlib.import_module("megatron.core.inference.quantization.mxfp8_quantize").mxfp8_quantize
      kernel(matrix)
      ways["Megatron's Triton kernel"] = lambda: kernel(matrix)
    except Exception as error:  # noqa: BLE001 - whatever it lacks, the row is left out, and said.
      print(f"  Megatron's kernel is left out: {error}")
  seconds = in_turn(ways, given.rounds, Clock(given.device))
  print_rows(f"BF16 to MXFP8, {given.rows} x 4096", matrix.numel() * 2, seconds)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--device", default="cuda")
  parser.add_argument("--model", default="qwen3-30b-a3b")
  parser.add_argument("--layers", type=int, default=8)
  parser.add_argument("--from", dest="source", default="megatron:ep=4,etp=1,dp=4")
  parser.add_argument("--to", dest="target", default="vllm:tp=4")
  parser.add_argument("--rounds", type=int, default=9)
  parser.add_argument("--rows", type=int, default=131072)
  given = parser.parse_args()
  if given.device != "cpu" and not torch.cuda.is_available():
    print("gpu_peers: skipped: torch sees no GPU")
    return
  refits(given)
  quantisers(given)


if __name__ == "__main__":
  main()
