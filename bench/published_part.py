# SPDX-License-Identifier: Apache-2.0
"""Whole plans for layouts with published times: bytes, bounds, and seconds of planning."""

import json

from machine import Watch
from programs import run
from rows import Row

# A link of 400 Gb/s for each rank, as most of the published systems have.
LINK_BYTES_PER_SECOND = 50e9

# (model, from, to, published seconds and their source). The engine's ranks follow the trainer's.
PAIRS = [
  ("qwen3-4b", "megatron:dp=8", "vllm:tp=8", "0.21-0.34 NeMo-RL"),
  ("qwen3-4b", "megatron:pp=2,dp=4", "vllm:tp=4,replicas=2", "0.09 NeMo-RL, colocated"),
  ("qwen3-4b", "megatron:pp=4,dp=2", "vllm:tp=4,replicas=2", "0.13-0.15 NeMo-RL, colocated"),
  ("qwen3-4b", "megatron:tp=2,pp=2,dp=2", "vllm:tp=4,replicas=2", "0.13 NeMo-RL, colocated"),
  ("qwen3-4b", "megatron:tp=2,dp=4", "vllm:tp=4,replicas=2", "0.11-0.15 NeMo-RL, colocated"),
  ("qwen3-30b-a3b", "megatron:ep=8,etp=1,dp=8,pp=2", "vllm:tp=8,replicas=2", "0.74-1.00 NeMo-RL"),
  ("qwen3-30b-a3b", "megatron:ep=8,etp=1,dp=16", "vllm:tp=2,replicas=8", "2.90-4.00 NeMo-RL, FP8"),
  ("qwen3-30b-a3b", "megatron:tp=2,ep=4,etp=1,dp=4", "vllm:tp=4,replicas=4", "1.13-1.53 NeMo-RL"),
  ("qwen3-30b-a3b", "megatron:tp=2,pp=2,ep=4,etp=1,dp=2", "vllm:tp=4,replicas=4", "0.74-1.17 NeMo-RL"),
  ("qwen3-30b-a3b", "megatron:tp=2,cp=2,ep=8,etp=1,dp=2", "vllm:tp=4,replicas=4", "1.02-1.45 NeMo-RL"),
  ("qwen3-30b-a3b", "megatron:tp=2,ep=4,etp=1,dp=4", "vllm:tp=4,dp=4,ep=4", "1.00-1.60 NeMo-RL, EP in the engine"),
  ("qwen3-30b-a3b", "megatron:ep=32,etp=1,dp=32", "vllm:tp=4,replicas=8", "2.16 miles"),
  ("qwen3-235b-a22b", "megatron:tp=4,pp=8,ep=16,etp=1,dp=4", "vllm:tp=8,replicas=16", "1.70-1.88 NeMo-RL"),
  ("qwen3-235b-a22b", "megatron:tp=2,pp=4,ep=16,etp=1,dp=16", "vllm:tp=8,replicas=16", "0.99 NCCL M2N, GB200"),
  ("deepseek-v3", "megatron:pp=16,first=3,last=2,ep=16,etp=1,dp=16", "vllm:tp=32,replicas=8", "2.39-2.83 NeMo-RL"),
  ("deepseek-v3", "megatron:pp=4,first=15,last=14,ep=16,etp=1,dp=32", "vllm:tp=8,replicas=16", "1.45 NCCL M2N, GB200"),
  ("deepseek-v3", "megatron:pp=16,first=3,last=2,ep=16,etp=1,dp=16", "vllm:tp=32", "9.25 NeMo-RL over NIXL"),
  ("kimi-k2", "megatron:tp=8,pp=8,first=7,last=6,ep=32,etp=1,dp=4", "vllm:tp=8,dp=16,ep=128", "1.3 fabric-lib, FP8"),
  ("kimi-k2", "megatron:tp=8,pp=8,first=7,last=6,ep=32,etp=1,dp=4", "vllm:tp=8,dp=32,ep=256", "7.23 miles"),
  ("glm-4.5-air", "megatron:tp=4,pp=2,ep=8,etp=1,dp=4", "vllm:tp=8,replicas=4", "2.64 miles"),
  ("nemotron-3-nano-30b-a3b", "megatron:tp=2,ep=8,etp=1,dp=8", "vllm:tp=4,replicas=4", "0.48-0.55 NeMo-RL"),
  ("nemotron-3-super-120b-a12b", "megatron:tp=8,pp=2,ep=8,etp=1,dp=2", "vllm:tp=8,replicas=2", "1.66-1.94 NeMo-RL"),
  ("llama-3.1-8b", "megatron:tp=4,dp=2", "vllm:tp=2,replicas=4", "0.04 LlamaRL"),
  ("llama-3.1-70b", "megatron:tp=8,pp=4,dp=8", "vllm:tp=8,replicas=16", "1.15 LlamaRL"),
  ("llama-3.1-405b", "megatron:tp=8,pp=16,dp=4", "vllm:tp=16,replicas=16", "2.31 LlamaRL"),
  ("gemma-3-1b", "megatron:dp=4", "vllm:tp=2,replicas=2", ""),
  ("mixtral-8x7b", "megatron:tp=2,pp=2,ep=8,etp=1,dp=4", "vllm:tp=8,replicas=2", ""),
  ("gpt-oss-120b", "megatron:tp=4,pp=2,ep=8,etp=1,dp=8", "vllm:tp=8,replicas=8", ""),
  ("gpt-oss-20b", "megatron:tp=2,ep=8,etp=1,dp=4", "vllm:tp=2,replicas=4", ""),
  ("glm-4.5", "megatron:tp=8,pp=4,ep=16,etp=1,dp=4", "vllm:tp=8,replicas=8", ""),
  ("qwen3-next-80b-a3b", "megatron:tp=2,pp=4,ep=8,etp=1,dp=8", "vllm:tp=4,replicas=8", ""),
]  # fmt: skip


def ranks_of(programs, model, layout):
  """The number of ranks of a layout."""
  argv = [programs.path("reshard"), "plan", "--model", programs.config(model)]
  return json.loads(run([*argv, "--from", layout, "--to", layout, "--json"]))["ranks"]


def row_of(programs, model, source, target, published):
  """One pair. Bytes and bounds are counts; other load on the machine affects only the seconds."""
  colocated = "colocated" in published
  if not colocated:
    target = f"{target},offset={ranks_of(programs, model, source)}"
  watch = Watch()
  argv = [programs.path("reshard"), "plan", "--model", programs.config(model), "--from", source]
  plan = json.loads(run([*argv, "--to", target, "--json"]))
  busiest = max(plan["max_egress_bytes"], plan["max_ingress_bytes"])
  bound = max(plan["optimal_max_egress_bytes"], plan["max_ingress_bytes"])
  counts = {key: value for key, value in plan.items() if isinstance(value, (int, float))}
  return Row(
    "published", f"{model}, {source} to {target}", "s", plan["plan_seconds"], plan["plan_seconds"],
    noise=watch.noise(), note=published,
    samples={**counts, "link_seconds": busiest / LINK_BYTES_PER_SECOND, "bound_bytes": bound},
  )  # fmt: skip


def measure(programs, quick):
  """Yields one row per pair; in a quick run, every third pair."""
  if not programs.has("reshard"):
    yield Row("published", "whole plans", skipped="the program reshard is not built")
    return
  for pair in PAIRS[:: 3 if quick else 1]:
    yield row_of(programs, *pair)
