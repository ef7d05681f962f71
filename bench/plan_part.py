# SPDX-License-Identifier: Apache-2.0
"""Planning: one rank's part, whole plans, and how evenly replicas share the sending."""

import json
import statistics

from machine import Watch
from programs import arguments, run_lines, run_measured
from rows import Row

VLLM_1024 = "vllm:tp=8,replicas=128,offset=1024"
BIG = ("qwen3-235b-a22b", "megatron:tp=2,pp=4,ep=16,etp=1,dp=128", VLLM_1024)
WHOLE = [
  ("llama-3.1-70b", "megatron:tp=8,pp=4,dp=32", VLLM_1024, 5.0),
  (*BIG, None),
]
PART_SECONDS, PART_MB = 0.1, 100
# (model, from, to, ranks of a replica of the source, of the target), on 1024 ranks a side, and on more.
MANY = [
  ("qwen3-235b-a22b", "megatron:tp=4,pp=4,ep=32,etp=1", "vllm:tp=8", 16, 8),
  ("deepseek-v3", "megatron:tp=8,pp=8,first=7,last=6,ep=64,etp=1", "vllm:tp=8", 64, 8),
]
MANY_RANKS = (1024, 16384, 65536)
# 65,536 ranks a side take at most twice the time of 1024.
MANY_TARGET = 2.0

# (model, from, to, bytes of the busiest sender of Megatron-Core's plan over the mean: counted separately)
PAIRS = [
  ("llama-3.1-8b", "megatron:tp=4,pp=2,dp=4", "megatron:tp=2,dp=16,offset=32", 1.00),
  ("llama-3.1-8b", "megatron:tp=2,pp=4,dp=4", "megatron:tp=4,dp=8,offset=32", 2.26),
  ("llama-3.1-8b", "megatron:tp=4,pp=2,dp=8", "megatron:tp=2,dp=32", 1.14),
  ("qwen3-30b-a3b", "megatron:tp=4,pp=2,ep=8,etp=1,dp=8", "megatron:tp=2,ep=8,etp=1,dp=32", 3.22),
  ("qwen3-30b-a3b", "megatron:tp=4,pp=2,ep=8,etp=1,dp=4", "megatron:tp=2,ep=8,etp=1,dp=16,offset=32", 1.82),
  ("qwen3-30b-a3b", "megatron:tp=4,ep=4,etp=1,dp=8", "megatron:tp=4,ep=16,etp=1,dp=8,offset=32", 6.75),
  ("qwen3-30b-a3b", "megatron:tp=4,ep=4,etp=1,dp=16", "megatron:tp=4,ep=8,etp=1,dp=16,offset=64", 14.5),
  ("qwen3-30b-a3b", "megatron:tp=2,ep=8,etp=1,dp=32", "megatron:tp=4,ep=8,etp=1,dp=16,offset=64", 7.4),
  ("qwen3-30b-a3b", "megatron:tp=1,ep=8,etp=1,dp=64", "megatron:tp=4,ep=8,etp=1,dp=16,offset=64", 13.5),
  ("qwen3-235b-a22b", "megatron:tp=4,pp=2,ep=8,etp=1,dp=4", "megatron:tp=8,ep=8,etp=1,dp=4,offset=32", 2.00),
  ("llama-3.1-8b", "megatron:tp=1,dp=32", "megatron:tp=1,dp=32,offset=32", 32.0),
  ("llama-3.1-8b", "megatron:tp=1,dp=64", "megatron:tp=4,dp=16,offset=64", 64.0),
  ("llama-3.1-8b", "megatron:tp=1,pp=2,dp=16", "megatron:tp=2,dp=16,offset=32", 16.0),
]  # fmt: skip


def plan_bench(programs, model, source, target, **options):
  """The object that plan_bench prints for one pair of layouts."""
  pair = {"config": programs.config(model), "from": source, "to": target}
  return run_lines([programs.path("plan_bench"), *arguments(**pair, **options)])[0]


def total(result, side):
  """Seconds from the config to the part of a rank of this side, for each repetition."""
  phases = ["model", "source_layout", "target_layout", "planner", f"{side}_part"]
  return [sum(times) for times in zip(*(result[f"seconds_{p}"] for p in phases))]


def phases_note(result, side):
  medians = {
    "model": statistics.median(result["seconds_model"]),
    "layouts": statistics.median(result["seconds_source_layout"])
    + statistics.median(result["seconds_target_layout"]),
    "planner": statistics.median(result["seconds_planner"]),
    "part": statistics.median(result[f"seconds_{side}_part"]),
  }
  return ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in medians.items())


def seconds_row(what, seconds, most, **fields):
  return Row(
    "plan", what, "s", statistics.median(seconds), min(seconds), target=most,
    target_is_most=True, target_is_ratio=False, samples={"seconds": seconds}, **fields,
  )  # fmt: skip


def memory_row(what, peaks, **fields):
  megabytes = [p / 1e6 for p in peaks]
  return Row(
    "plan", what, "MB", statistics.median(megabytes), min(megabytes), target=PART_MB,
    target_is_most=True, target_is_ratio=False, samples={"peak_rss_bytes": peaks}, **fields,
  )  # fmt: skip


def fresh_part_rows(programs, side, repeat):
  """One rank's part in new processes, with the program that users run."""
  what = f"one rank's part, {side} side, of {BIG[0]}, {BIG[1]} to {BIG[2]}: new process"
  if not programs.has("reshard"):
    return [Row("plan", what, skipped="the program reshard is not built")]
  rank = {"source": 512, "target": 1536}[side]
  argv = [programs.path("reshard"), "plan", "--model", programs.config(BIG[0]), "--from", BIG[1]]
  argv += ["--to", BIG[2], "--rank", str(rank), "--json"]
  watch = Watch()
  runs = [run_measured(argv) for _ in range(repeat)]
  plans = [json.loads(out) for _, _, out in runs]
  noise = watch.noise()
  walls = statistics.median(seconds for seconds, _, _ in runs)
  note = f"whole program {walls * 1e3:.0f} ms"
  return [
    seconds_row(what, [p["plan_seconds"] for p in plans], PART_SECONDS, noise=noise, note=note),
    memory_row("the same, peak memory of the process", [rss for _, rss, _ in runs], noise=noise),
  ]


def many_rows(programs, model, source, target, of_source, of_target, repeat):
  """One rank's part on more and more ranks, in new processes, in turn."""
  if not programs.has("reshard"):
    yield Row("plan", f"one rank's part of {model} on many ranks", skipped="the program reshard is not built")
    return
  pairs = [(f"{source},dp={n // of_source}", f"{target},replicas={n // of_target}") for n in MANY_RANKS]
  watch, seconds, peaks = Watch(), [[] for _ in pairs], [[] for _ in pairs]
  for _ in range(repeat):
    for i, (one, other) in enumerate(pairs):
      argv = [programs.path("reshard"), "plan", "--model", programs.config(model), "--from", one, "--to", other]
      _, peak, out = run_measured([*argv, "--rank", "0", "--json"])
      seconds[i].append(json.loads(out)["plan_seconds"])
      peaks[i].append(peak)
  noise, least = watch.noise(), statistics.median(seconds[0])
  for ranks, times, of in zip(MANY_RANKS, seconds, peaks, strict=True):
    yield Row(
      "plan", f"one rank's part of {model}, {ranks:,} to {ranks:,} ranks", "s", statistics.median(times), min(times),
      against=least, against_name=f"{MANY_RANKS[0]:,} ranks", ratio=statistics.median(times) / least,
      target=MANY_TARGET, target_is_most=True, noise=noise, note=f"peak memory {statistics.median(of) / 1e6:.0f} MB",
      samples={"seconds": times, "peak_rss_bytes": of},
    )  # fmt: skip


def warm_part_rows(programs, repeat):
  """Both sides' parts again and again in one process, by phase."""
  watch = Watch()
  result = plan_bench(programs, *BIG, repeat=repeat)
  noise = watch.noise()
  for side in ("source", "target"):
    what = f"one rank's part, {side} side, of {BIG[0]}: one process, slowest of three ranks"
    note = phases_note(result, side)
    yield seconds_row(what, total(result, side), PART_SECONDS, noise=noise, note=note)
  watch = Watch()
  peaks = [plan_bench(programs, *BIG, repeat=1, side=s)["peak_rss_bytes"] for s in ("source", "target")]
  yield memory_row("the same, peak memory of the library alone", peaks, noise=watch.noise())


def whole_row(programs, model, source, target, most, threads, repeat):
  watch = Watch()
  result = plan_bench(programs, model, source, target, whole=threads, side="none", repeat=repeat)
  phases = ["model", "source_layout", "target_layout", "planner", "whole"]
  seconds = [sum(times) for times in zip(*(result[f"seconds_{p}"] for p in phases))]
  note = f"{result['transfers']:,} transfers, {threads} threads"
  what = f"whole plan of {model}, {source} to {target}"
  return seconds_row(what, seconds, most, noise=watch.noise(), note=note)


def balance_row(programs, model, source, target, peer, threads):
  """Counts bytes, so other load on the machine does not matter."""
  result = plan_bench(programs, model, source, target, whole=threads, side="none", repeat=1)
  busiest, optimum = result["max_egress_bytes"], result["optimal_max_egress_bytes"]
  mean = result["bytes_wire"] / result["source_ranks"]
  figure = busiest / optimum
  return Row(
    "balance", f"{model}, {source} to {target}, {result['ranks']} ranks", "", figure, figure,
    peer, "Megatron-Core", target=1.0, target_is_most=True, target_is_ratio=False, tolerance=0.005,
    note=f"{busiest / mean:.3f} of the mean",
    samples={"max_egress_bytes": busiest, "optimum": optimum, "mean": mean},
  )  # fmt: skip


def measure(programs, quick, threads):
  """Yields the rows of planning."""
  for side in ("source", "target"):
    yield from fresh_part_rows(programs, side, 3 if quick else 9)
  yield from warm_part_rows(programs, 10 if quick else 30)
  for case in MANY:
    yield from many_rows(programs, *case, 3 if quick else 9)
  for model, source, target, most in WHOLE:
    yield whole_row(programs, model, source, target, most, threads, 2 if quick else 5)
  for pair in PAIRS:
    yield balance_row(programs, *pair, threads)
