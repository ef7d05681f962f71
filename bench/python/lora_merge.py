# SPDX-License-Identifier: Apache-2.0
"""The time that merging a LoRA adapter takes: reshard.lora.Merge, PEFT's way of adding, and a copy of as many bytes.

    python bench/python/lora_merge.py [--device cuda] [--layers N] [--r N] [--rounds N]

The weights are BF16 with the shapes of Llama-3.1-8B's layers (hidden 4096, 14336), all seven linear modules of each adapted.
PEFT's way, as its `merge()` does it: the product in the weights' dtype, scaled, then added. The ways take turns; both
results are compared with sums in F64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import reshard
import reshard.lora
import torch

MODULES = {
  "q_proj": (4096, 4096), "k_proj": (1024, 4096), "v_proj": (1024, 4096), "o_proj": (4096, 4096),
  "gate_proj": (14336, 4096), "up_proj": (14336, 4096), "down_proj": (4096, 14336),
}  # fmt: skip


def tensors_of(layers: int, r: int, device: str) -> dict[str, torch.Tensor]:
  generator = torch.Generator(device).manual_seed(1)
  made: dict[str, torch.Tensor] = {}
  for layer in range(layers):
    for module, (rows, cols) in MODULES.items():
      at = f"layers.{layer}.{module}"
      for name, shape in (("weight", (rows, cols)), ("lora_A.default.weight", (r, cols)), ("lora_B.default.weight", (rows, r))):
        made[f"{at}.{name}"] = torch.randn(shape, generator=generator, device=device).mul_(0.02).bfloat16()
  return made


def milliseconds(way: Callable[[], object], wait: Callable[[], None]) -> float:
  wait()
  begin = time.perf_counter()
  way()
  wait()
  return (time.perf_counter() - begin) * 1e3


def wrong(got: torch.Tensor, tensors: dict[str, torch.Tensor], weight: str, scale: float) -> float:
  """The share of elements that are not the exact sum, rounded once."""
  stem = weight.removesuffix("weight")
  a, b = (tensors[f"{stem}lora_{kind}.default.weight"].double() for kind in "AB")
  exact = (tensors[weight].double() + scale * (b @ a)).bfloat16()
  return float((got != exact).float().mean())


def main() -> int:
  parser = argparse.ArgumentParser(description="Merging adapters.")
  parser.add_argument("--device", default="cuda")
  parser.add_argument("--layers", type=int, default=8)
  parser.add_argument("--r", type=int, default=16)
  parser.add_argument("--rounds", type=int, default=9)
  args = parser.parse_args()
  wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None

  tensors = tensors_of(args.layers, args.r, args.device)
  weights = [name for name in tensors if ".lora_" not in name]
  model = reshard.Model.from_tensors("adapted", {name: (tuple(t.shape), "bfloat16") for name, t in tensors.items()})
  merge = reshard.lora.Merge(reshard.layout("hf", model), tensors, {"default": {"r": args.r, "lora_alpha": 2 * args.r}})
  added = {name: torch.empty_like(tensors[name]) for name in weights}

  def as_peft() -> None:
    for name, out in added.items():
      stem = name.removesuffix("weight")
      a, b = (tensors[f"{stem}lora_{kind}.default.weight"] for kind in "AB")
      torch.add(tensors[name], (b @ a) * 2.0, out=out)

  def copy() -> None:
    torch._foreach_copy_(list(added.values()), [tensors[name] for name in weights])

  ways = {"copy": copy, "PEFT's way": as_peft, "reshard.lora.Merge": merge.merge}
  times: dict[str, list[float]] = {name: [] for name in ways}
  for way in ways.values():
    way()
  for _ in range(args.rounds):
    for name, way in ways.items():
      times[name].append(milliseconds(way, wait))
  as_peft()
  shares = {"copy": 0.0}
  shares["PEFT's way"] = statistics.fmean(wrong(added[name], tensors, name, 2.0) for name in weights)
  shares["reshard.lora.Merge"] = statistics.fmean(wrong(merge.tensors[name], tensors, name, 2.0) for name in weights)
  total = sum(tensors[name].nbytes for name in weights)
  print(f"{len(weights)} weights, {total / 1e9:.2f} GB, adapters of rank {args.r}, on {args.device}")
  for name, measured in times.items():
    print(
      f"{name:20} min {min(measured):8.2f} ms, median {statistics.median(measured):8.2f} ms; "
      f"not the exact sum: {shares[name]:.2%} of the elements"
    )
  return 0 if shares["reshard.lora.Merge"] < 0.01 else 1


if __name__ == "__main__":
  sys.exit(main())
