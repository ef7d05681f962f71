# SPDX-License-Identifier: Apache-2.0
"""On one GPU, against the driver's own copy of as many bytes: refits between ranks, every byte verified, and kernels."""

import json
import statistics
import subprocess

import jobs
from machine import Watch
from programs import arguments, run_lines
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

# Of the driver's copy that reads and writes as many bytes in total.
QUANTISE_TARGET = 0.85
# (arguments of gpu_kernels_bench, what it measures, target, in quick runs too)
KERNELS = (
  ({"kind": "copy", "run": 16384}, "runs of 16 KiB", LONG_TARGET, True),
  ({"kind": "copy", "run": 1856, "pitch": 3712}, "runs of 1856 bytes", SHORT_TARGET, False),
  ({"kind": "copy", "run": 192, "pitch": 1536}, "runs of 192 bytes, 1536 apart", SHORT_TARGET, True),
  ({"kind": "slices", "run": 1024, "pitch": 2048}, "tensors of 1 KiB", SHORT_TARGET, True),
  ({"kind": "slices", "run": 192, "pitch": 256}, "tensors of 192 bytes", None, True),
  ({"kind": "cast", "matrix": "4096x14336"}, "F32 to BF16", LONG_TARGET, True),
  ({"kind": "transpose", "matrix": "2880x2880"}, "BF16 matrices transposed, 2880x2880", SHORT_TARGET, True),
  ({"kind": "quantise", "format": "mxfp8", "matrix": "4096x14336"}, "mxfp8, 4096x14336", QUANTISE_TARGET, True),
  ({"kind": "quantise", "format": "mxfp8", "matrix": "2688x1856"}, "mxfp8, 2688x1856", QUANTISE_TARGET, False),
  ({"kind": "quantise", "format": "mxfp8_swizzled", "matrix": "4096x14336"}, "mxfp8_swizzled", QUANTISE_TARGET, False),
  ({"kind": "quantise", "format": "fp8_block", "matrix": "4096x14336"}, "fp8_block, 4096x14336", QUANTISE_TARGET, True),
  ({"kind": "quantise", "format": "fp8_block", "matrix": "2880x2880"}, "fp8_block, 2880x2880", QUANTISE_TARGET, False),
  ({"kind": "quantise", "format": "fp8_channel", "matrix": "4096x14336"}, "fp8_channel", QUANTISE_TARGET, False),
  # Two passes over the values: the first finds the largest one.
  ({"kind": "quantise", "format": "nvfp4", "matrix": "4096x14336"}, "nvfp4, amax included", None, True),
)  # fmt: skip

# Between processes that read each other's memory. (model, layers, layers of quick runs, processes, from, to)
PEERS = (
  ("llama-3.1-8b", 16, 4, 2, "megatron:tp=1", "vllm:tp=1,offset=1"),
  ("qwen3-30b-a3b", 8, 2, 2, "megatron:ep=2,etp=1,dp=2", "vllm:tp=2"),
)
# Of a kernel that only reads as many bytes, one after the other.
FINGERPRINT_TARGET = 0.9
FINGERPRINTS = (
  ({"kind": "fingerprint", "matrix": "4096x14336"}, "4096x14336", FINGERPRINT_TARGET, True),
  ({"kind": "fingerprint", "matrix": "2048x768"}, "2048x768", FINGERPRINT_TARGET, True),
  ({"kind": "fingerprint", "matrix": "2688x1856"}, "2688x1856", FINGERPRINT_TARGET, False),
  ({"kind": "fingerprint_columns", "run": 192, "pitch": 1536}, "192 of 1536 bytes of a row", None, True),
  ({"kind": "fingerprint_transposed", "matrix": "2880x2880"}, "2880x2880 transposed", None, True),
)  # fmt: skip


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


def kernel_rows(programs, pairs, what, target, quick):
  watch = Watch()
  (result,) = run_lines(
    [programs.path("gpu_kernels_bench"), *arguments(**pairs, mib=512 if quick else 4096, rounds=9 if quick else 25)]
  )
  moved = result["plain_bytes"]
  plain = rates(result["seconds_plain"], moved)[0]
  for way in ("copy", "slices", "cast", "transpose", "quantise", "dequantise"):
    if f"seconds_{way}" in result:
      seconds = result[f"seconds_{way}"]
      median, best = rates(seconds, moved)
      yield Row(
        "gpu", f"on one GPU: {way}, {what}", "GB/s", median, best, plain, "the driver's copy", median / plain, target,
        noise=watch.noise(), note=result["gpu"], samples={"seconds": seconds},
      )  # fmt: skip


def fingerprint_row(result, what, target, noise):
  """A row from a line of gpu_kernels_bench. Without a kernel that only reads, a copy reads and writes as much."""
  ceiling, of = "seconds_read", "a kernel that only reads"
  if ceiling not in result:
    ceiling, of = "seconds_plain", "the driver's copy, both ways"
  read, seconds = 2 * result["plain_bytes"], result["seconds_fingerprint"]
  median, best = rates(seconds, read)
  plain = rates(result[ceiling], read)[0]
  return Row(
    "gpu", f"on one GPU: fingerprints of BF16 tensors, {what}", "GB/s", median, best, plain, of, median / plain, target,
    noise=noise, note=result["gpu"], samples={"seconds": seconds},
  )  # fmt: skip


def fingerprint_rows(programs, quick):
  for pairs, what, target, always in FINGERPRINTS:
    if quick and not always:
      continue
    watch = Watch()
    options = arguments(**pairs, mib=512 if quick else 4096, rounds=9 if quick else 25)
    (result,) = run_lines([programs.path("gpu_kernels_bench"), *options])
    yield fingerprint_row(result, what, target, watch.noise())


def beside_row(programs, quick):
  """A refit's copy on an eighth of the multiprocessors, while another stream has kernels of its own."""
  watch = Watch()
  (result,) = run_lines(
    [programs.path("gpu_kernels_bench"), *arguments(kind="beside", mib=512 if quick else 2048, rounds=9)]
  )
  load, alone, both = (statistics.median(result[f"seconds_{k}"]) for k in ("load", "refit", "both"))
  return Row(
    "gpu", "on one GPU: kernels of others, and a refit beside them", "ms", both * 1e3,
    min(result["seconds_both"]) * 1e3, (load + alone) * 1e3, "one after the other", both / (load + alone), 1.0, target_is_most=True, noise=watch.noise(),
    note=f"kernels alone {load * 1e3:.2f} ms, the refit alone {alone * 1e3:.2f} ms", samples=result,
  )  # fmt: skip


def peers_row(programs, model, layers, processes, source, target, rounds):
  """A refit between processes on GPU 0, in turn with the driver's copies from the same processes' memory."""
  pairs = {"config": programs.config(model), "layers": layers, "from": source, "to": target}
  argv = [programs.path("gpu_peers_bench"), *arguments(**pairs, transport="shm", rounds=rounds)]
  watch = Watch()
  (result,) = jobs.run_by_hand(argv, processes)
  if result["path"] != "direct" or result["checked_bytes"] < result["bytes"]:
    raise BenchError(f"{' '.join(argv)}: took the {result['path']} path, checked {result['checked_bytes']} bytes")
  median, best = rates(result["seconds_refit"], result["bytes"])
  plain = rates(result["seconds_plain"], result["bytes"])[0]
  return Row(
    "gpu", f"through CUDA IPC: {model}, {layers} layers, {source} to {target}, {processes} processes", "GB/s", median,
    best, plain, "the driver's copies between them", median / plain, LONG_TARGET, noise=watch.noise(),
    note=result["gpu"], samples={k: v for k, v in result.items() if k.startswith("seconds_")},
  )  # fmt: skip


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
  for pairs, what, target, always in KERNELS:
    if always or not quick:
      yield from kernel_rows(programs, pairs, what, target, quick)
  yield from fingerprint_rows(programs, quick)
  yield beside_row(programs, quick)
  for model, layers, few, processes, source, target in PEERS:
    yield peers_row(programs, model, few if quick else layers, processes, source, target, 7 if quick else 15)
