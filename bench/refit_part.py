# SPDX-License-Identifier: Apache-2.0
"""Refits in one process against the best plain copy of as many bytes, and against hand-written code."""

import dataclasses
import os
import pathlib
import subprocess
import sys

from machine import Watch, available_memory
from programs import alternate, arguments, run_lines
from rows import LONG_RUN, BenchError, Row, copy_target, fastest, long_share, rates

PLAIN_COPIES = ("libc", "streaming", "streams")
# Source, destination, and as much again for the plain copies; no case needs more.
MOST_MEMORY = 12 * 2**30


@dataclasses.dataclass
class Case:
  """A case of refit_bench; `quick` cases are part of quick runs too."""

  name: str
  options: dict
  quick: bool = False


def model_case(model, layers, source, target, quick=False):
  """Layers of a model with a small vocabulary, since embeddings would otherwise be most of the bytes."""
  options = {"config": model, "layers": layers, "vocab": 8192, "from": source, "to": target}
  plural = "s" if layers > 1 else ""
  return Case(f"{model}, {layers} layer{plural}, {source} to {target}", options, quick)


def tensor_case(name, shape, count, source, target, quick=False):
  """Copies of one BF16 tensor; a side is DIM:PARTS."""
  options = {"tensor": shape, "count": count, "from": source, "to": target}
  return Case(f"{name} ({count} tensors of {shape})", options, quick)


FFN_CASE = tensor_case("Llama down_proj, TP4 to TP8", "4096x14336", 10, "1:4", "1:8", True)
EXPERT_CASE = tensor_case("Qwen3-30B experts' down_proj, EP to TP8", "2048x768", 384, "0:1", "1:8", True)
CASES = [
  model_case("llama-3.1-8b", 3, "megatron:tp=2", "megatron:tp=4", True),
  model_case("llama-3.1-8b", 3, "megatron:tp=4", "megatron:tp=1"),
  model_case("llama-3.1-8b", 3, "megatron:tp=4", "vllm:tp=2"),
  model_case("qwen3-30b-a3b", 1, "megatron:ep=4,etp=1,dp=4", "megatron:ep=8,etp=1,dp=8"),
  tensor_case("Llama down_proj, TP2 to TP4", "4096x14336", 10, "1:2", "1:4", True),
  model_case("qwen3-30b-a3b", 1, "megatron:ep=4,etp=1,dp=4", "vllm:tp=8", True),
  EXPERT_CASE,
  FFN_CASE,
  tensor_case("Llama o_proj, TP4 to TP8", "4096x4096", 36, "1:4", "1:8"),
  tensor_case("Llama o_proj, TP8 to TP1", "4096x4096", 36, "1:8", "1:1"),
  tensor_case("odd sizes, TP4 to TP8", "2688x1856", 120, "1:4", "1:8", True),
  tensor_case("odd sizes, TP4 to TP8", "2880x2880", 72, "1:4", "1:8"),
  tensor_case("odd sizes, TP8 to TP1", "2688x1856", 120, "1:8", "1:1"),
]


def case_arguments(programs, case):
  options = dict(case.options)
  if "config" in options:
    options["config"] = programs.config(options["config"])
  return arguments(**options)


def size_text(num_bytes):
  for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
    if num_bytes >= 10 * size or num_bytes % size == 0:
      return f"{num_bytes / size:.0f} {unit}"
  return f"{num_bytes} B"


def runs_note(result):
  """The three run lengths with the most bytes."""
  total = sum(result["bytes_in_runs"])
  pairs = sorted(zip(result["bytes_in_runs"], result["run_bytes"]), reverse=True)[:3]
  lengths = ", ".join(f"{n / total:.0%} of {size_text(run)}" for n, run in pairs)
  return f"runs: {lengths}; {1 - long_share(result):.0%} below {size_text(LONG_RUN)}"


def refit_row(name, result, noise):
  """The row of one line of refit_bench."""
  if result["checked_bytes"] != result["bytes"]:
    raise BenchError(f"{name}: {result['checked_bytes']} of {result['bytes']} bytes were checked")
  # All plain copies move plain_bytes, the bytes that the refit delivers.
  plain, ceiling = fastest(result, PLAIN_COPIES, result["plain_bytes"])
  median, best = rates(result["seconds_refit"], result["bytes"])
  what = f"{name}, {result['threads']} thread" + ("s" if result["threads"] > 1 else "")
  samples = {k: v for k, v in result.items() if k.startswith(("seconds_", "run", "bytes"))}
  return Row(
    "refit", what, "GB/s", median, best, ceiling, f"copy ({plain})", median / ceiling,
    copy_target(long_share(result)), noise=noise, note=runs_note(result), samples=samples,
  )  # fmt: skip


def case_rows(programs, case, rounds, threads):
  if available_memory() < MOST_MEMORY:
    yield Row("refit", case.name, skipped=f"less than {MOST_MEMORY >> 30} GiB of memory are free")
    return
  argv = [programs.path("refit_bench"), *case_arguments(programs, case)]
  watch = Watch()
  results = run_lines([*argv, *arguments(threads=",".join(map(str, threads)), rounds=rounds)])
  noise = watch.noise()
  for result in results:
    yield refit_row(case.name, result, noise)


def python_with(module, build):
  """A Python that can import the module, or None."""
  for python in (str(build / "venv" / "bin" / "python"), sys.executable, "/usr/bin/python3"):
    if os.access(python, os.X_OK):
      found = subprocess.run([python, "-c", f"import numpy, {module}"], capture_output=True)
      if found.returncode == 0:
        return python
  return None


def peer_row(programs, build, case, way, rounds, threads):
  """A refit in turn with the same slices moved by hand, in numpy or torch."""
  title = f"{case.name}, {threads} thread" + ("s" if threads > 1 else "")
  python = python_with(way, build)
  if python is None:
    return Row("peer", f"{title}, against {way}", skipped=f"no Python here has {way}")
  ours = [programs.path("refit_bench"), *case_arguments(programs, case)]
  ours += arguments(threads=threads, rounds=0)
  script = pathlib.Path(__file__).with_name("copy_peer.py")
  theirs = [python, str(script), *case_arguments(programs, case), "--way", way]
  theirs += ["--threads", str(threads)]
  watch = Watch()
  (mine,), (peer,) = alternate([ours, theirs], rounds)
  if mine["bytes"] != peer["bytes"] or peer["checked_bytes"] != peer["bytes"]:
    raise BenchError(f"{case.name}: {way} moved {peer['bytes']} bytes, not {mine['bytes']}")
  median, best = rates(mine["seconds_refit"], mine["bytes"])
  other, _ = rates(peer["seconds"], peer["bytes"])
  samples = {"seconds": mine["seconds_refit"], f"seconds_{way}": peer["seconds"]}
  return Row(
    "peer", title, "GB/s", median, best, other, f"{way} {peer['version']}", median / other,
    noise=watch.noise(), samples=samples,
  )  # fmt: skip


def measure(programs, build, quick, threads):
  """Yields the rows of refits, then those of the peers."""
  counts = sorted({1, threads})
  for case in CASES:
    if case.quick or not quick:
      yield from case_rows(programs, case, 5 if quick else 9, counts)
  if available_memory() < MOST_MEMORY:
    return
  for case in (FFN_CASE, EXPERT_CASE):
    yield peer_row(programs, build, case, "numpy", 3 if quick else 7, 1)
    if not quick:
      for n in counts:
        yield peer_row(programs, build, case, "torch", 7, n)
