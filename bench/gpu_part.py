# SPDX-License-Identifier: Apache-2.0
"""Refits between ranks on one GPU against the driver's own copy of as many bytes there, every byte verified."""

import json
import subprocess

from machine import Watch
from rows import BenchError, Row, rates

# Of the driver's copy: with long runs, and with runs of a few hundred bytes.
LONG_TARGET, SHORT_TARGET = 0.9, 0.8
# (model, layers, layers of quick runs, from, to, target). 20 layers of the MoE model are 26 GB.
CASES = (
  ("qwen3-30b-a3b", 20, 4, "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=2", LONG_TARGET),
  ("qwen3-30b-a3b", 20, 4, "megatron:ep=8,etp=1,dp=8", "vllm:tp=8", SHORT_TARGET),
  ("llama-3.1-8b", 32, 8, "megatron:tp=4", "vllm:tp=2", LONG_TARGET),
  ("llama-3.1-8b", 32, 8, "megatron:tp=2,pp=2", "vllm:tp=8", LONG_TARGET),
)


def refit(programs, model, layers, source, target, repeat):
  """The report of `reshard run`, or why there is no GPU to run it."""
  argv = [programs.path("reshard"), "run", "--model", programs.config(model), "--layers", str(layers)]
  argv += ["--from", source, "--to", target, "--device", "cuda", "--repeat", str(repeat), "--verify", "--json"]
  done = subprocess.run(argv, capture_output=True, text=True)
  if done.returncode == 0:
    return json.loads(done.stdout), ""
  if "no NVIDIA driver" in done.stderr or "no GPU" in done.stderr:
    return None, done.stderr.strip().removeprefix("reshard: ")
  raise BenchError(f"{' '.join(argv)}: {done.stderr.strip()}")


def measure(programs, quick):
  for model, layers, few, source, target, least in CASES:
    count = few if quick else layers
    name = f"on one GPU: {model}, {count} layers, {source} to {target}"
    watch = Watch()
    report, missing = refit(programs, model, count, source, target, 10 if quick else 30)
    if missing:
      yield Row("gpu", "refits on one GPU", skipped=missing)
      return
    copied = report["gb_per_s"] * 1e9 * min(report["seconds"])
    median, best = rates(report["seconds"], copied)
    plain = report["memcpy_gb_per_s"]
    yield Row(
      "gpu", name, "GB/s", median, best, plain, "the driver's copy", median / plain, least, noise=watch.noise(),
      note=f"{copied / 1e9:.1f} GB, {report['copies']} copies", samples={"seconds": report["seconds"]},
    )  # fmt: skip
