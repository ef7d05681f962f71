# SPDX-License-Identifier: Apache-2.0
"""Refits between processes of one host, in turn with plain copies, MPI and whole tensors."""

import dataclasses
import os
import shutil
import statistics
import subprocess

import jobs
from machine import Watch, available_memory
from programs import arguments
from rows import BenchError, Row, fastest, rates

# Required share of one copy through shared memory, and of the kernel's copy between processes.
SHARED_TARGET, KERNEL_TARGET = 0.8, 0.8
# Other ways over MPI: name, description, required multiple of its speed.
ALLTOALLW = ("alltoallw", "MPI_Alltoallw, derived datatypes", 1.5)
ISEND = ("isend", "packed by hand, MPI_Isend", 1.0)
# Required share of UCX's own benchmark, for long runs.
PERFTEST_TARGET = 0.9
STAGING = 64 << 20
MOST_MEMORY = 12 * 2**30


@dataclasses.dataclass
class Case:
  name: str
  ranks: int
  options: dict
  quick: bool = False


def model_case(model, layers, ranks, source, target, quick=False):
  options = {"config": model, "layers": layers, "vocab": 8192, "from": source, "to": target}
  layer = "layer" if layers == 1 else "layers"
  return Case(f"{model}, {layers} {layer}, {source} to {target}, {ranks} processes", ranks, options, quick)


def tensor_case(shape, count, ranks, source, target, quick=False):
  options = {"tensor": shape, "count": count, "from": source, "to": target}
  return Case(f"{count} tensors of {shape}, {source} to {target}, {ranks} processes", ranks, options, quick)


APART = model_case("qwen3-30b-a3b", 1, 4, "megatron:tp=2,ep=2,etp=1", "vllm:tp=2,offset=2", True)
MIXED = model_case("qwen3-30b-a3b", 1, 4, "megatron:ep=4,etp=1,dp=4", "vllm:tp=4", True)
CASES = [
  model_case("llama-3.1-8b", 3, 2, "megatron:tp=2", "vllm:tp=2", True),
  model_case("llama-3.1-8b", 3, 2, "megatron:tp=1", "vllm:tp=1,offset=1"),
  model_case("llama-3.1-8b", 2, 4, "megatron:tp=4", "vllm:tp=2"),
  APART,
  model_case("qwen3-30b-a3b", 1, 2, "megatron:ep=2,etp=1,dp=2", "vllm:tp=2", True),
  tensor_case("4096x14336", 6, 4, "1:2", "1:2:2"),
  tensor_case("2688x1856", 80, 3, "1:3", "0:2", True),
  tensor_case("2880x2880", 48, 4, "1:4", "1:3"),
]


def job_arguments(programs, case, **more):
  options = {**case.options, **more}
  if "config" in options:
    options["config"] = programs.config(options["config"])
  return arguments(**options)


def checked(case, result):
  if result["checked_bytes"] < result["bytes"]:
    raise BenchError(f"{case.name}: {result['checked_bytes']} of {result['bytes']} bytes were checked")
  if result["staging_bytes"] > STAGING:
    raise BenchError(f"{case.name}: {result['staging_bytes']} bytes of staging, {STAGING} allowed")
  return result


def note_of(result):
  staging = result["staging_bytes"] / 2**20
  return f"{result['path']} path, staging {staging:.0f} of {STAGING >> 20} MiB"


def row_of(title, result, against, name, target, noise):
  """A row with the refit against another way; `against` in GB/s."""
  median, best = rates(result["seconds_refit"], result["bytes"])
  samples = {k: v for k, v in result.items() if k.startswith(("seconds_", "bytes", "staging", "most"))}
  return Row(
    "process", title, "GB/s", median, best, against, name, median / against, target,
    noise=noise, note=note_of(result), samples=samples,
  )  # fmt: skip


def shm_row(programs, case, rounds, memory):
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="shm")]
  argv += arguments(memory=memory, rounds=rounds, staging=STAGING, ways="pull")
  watch = Watch()
  (result,) = jobs.run_by_hand(argv, case.ranks)
  checked(case, result)
  ways = [w for w in ("pull_libc", "pull_streaming", "pull_streams", "pull_get") if f"seconds_{w}" in result]
  way, ceiling = fastest(result, ways, result["bytes"])
  target = SHARED_TARGET if memory == "shared" else KERNEL_TARGET
  title = f"shm, {memory} memory: {case.name}"
  return row_of(title, result, ceiling, way.replace("_", " "), target, watch.noise())


def mixed_row(programs, rounds):
  """Ranks 0 and 1 map each other's memory, 2 and 3 nobody's; in turn with messages between all."""
  argv = [programs.path("rank_bench"), *job_arguments(programs, MIXED, transport="shm")]
  argv += arguments(rounds=rounds, staging=STAGING, ways="message", mapped=2)
  watch = Watch()
  (result,) = jobs.run_by_hand(argv, MIXED.ranks)
  if checked(MIXED, result)["path"] != "mixed":
    raise BenchError(f"{MIXED.name}: the {result['path']} path was taken")
  messages, _ = rates(result["seconds_message"], result["bytes"])
  title = f"shm, two ranks of four map memory: {MIXED.name}"
  return row_of(title, result, messages, "messages between all", 1.0, watch.noise())


def mpi_rows(programs, case, rounds, library):
  """On the path that one host allows, and by messages, as between hosts, where MPI has both ways too."""
  yield from mpi_path_rows(programs, case, rounds, library, "automatic", (ALLTOALLW,))
  yield from mpi_path_rows(programs, case, rounds, library, "message", (ISEND,))


def mpi_path_rows(programs, case, rounds, library, path, others):
  argv = [programs.path(f"rank_bench_{library}"), *job_arguments(programs, case, transport="mpi")]
  argv += arguments(rounds=rounds, staging=STAGING, path=path, ways=",".join(o[0] for o in others))
  watch = Watch()
  (result,) = jobs.run_by_mpi(library, argv, case.ranks)
  checked(case, result)
  noise, title = watch.noise(), f"mpi ({library}): {case.name}"
  for way, words, target in others:
    other, _ = rates(result[f"seconds_{way}"], result["bytes"])
    yield row_of(title, result, other, words, target, noise)


def whole_rows(programs, case, rounds, transport):
  """Against ways that bring whole tensors to every engine rank."""
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport=transport)]
  argv += arguments(rounds=rounds, staging=STAGING, ways="gather,broadcast")
  watch = Watch()
  (result,) = jobs.run_by_hand(argv, case.ranks)
  checked(case, result)
  noise = watch.noise()
  for way, words in (("gather", "gather everything, then slice"), ("broadcast", "broadcast everything")):
    other, _ = rates(result[f"seconds_{way}"], result["bytes"])
    yield row_of(f"{transport}: {case.name}", result, other, words, None, noise)


def perftest_rate(test, tls, port):
  """GB/s of ucx_perftest between two processes of this host, in messages of 64 MiB."""
  env = {**os.environ, "UCX_TLS": tls}
  # Line-buffered, so that the line that announces the listener arrives at once.
  server = subprocess.Popen(["stdbuf", "-oL", "ucx_perftest", "-p", str(port)], env=env, stdout=subprocess.PIPE)
  try:
    server.stdout.readline()
    argv = ["ucx_perftest", "-p", str(port), "localhost", "-t", test, "-s", str(64 << 20)]
    argv += ["-n", "20", "-w", "3", "-v", "-f"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    lines = [line.split(",") for line in done.stdout.splitlines() if line[:1] in " 0123456789"]
    if done.returncode != 0 or not lines:
      raise BenchError(f"ucx_perftest {test} over {tls}: {done.stderr.strip() or done.stdout.strip()}")
    return float(lines[-1][5]) * 2**20 / 1e9
  finally:
    server.kill()
    server.wait()


def ucx_row(programs, tls, rounds, path, target):
  """Long runs over UCX by turns with UCX's own benchmark. On the direct path, which one host allows,
  UCX carries nothing but tables: the row says what a refit of its ranks gets there."""
  title = f"ucx, UCX_TLS={tls}, {path} path: 4 tensors of 4096x8192 from one process to another"
  if shutil.which("ucx_perftest") is None:
    return Row("process", title, skipped="there is no ucx_perftest (Debian: ucx-utils)")
  case = tensor_case("4096x8192", 4, 2, "0:1", "0:1:1")
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="ucx")]
  argv += arguments(memory="private", rounds=5, staging=STAGING, path=path)
  watch, seconds, peers = Watch(), [], {"tag_bw": [], "ucp_put_bw": []}
  for turn in range(rounds):
    for i, test in enumerate(peers):
      peers[test].append(perftest_rate(test, tls, 42200 + 2 * turn + i))
    (result,) = jobs.run_by_hand(argv, case.ranks, environment={"UCX_TLS": tls})
    seconds += checked(case, result)["seconds_refit"]
  test = max(peers, key=lambda name: statistics.median(peers[name]))
  result = {**result, "seconds_refit": seconds}
  peer = statistics.median(peers[test])
  return row_of(title, result, peer, f"ucx_perftest {test}", target, watch.noise())


def measure(programs, quick):
  if available_memory() < MOST_MEMORY:
    yield Row("process", "refits between processes", skipped=f"less than {MOST_MEMORY >> 30} GiB are free")
    return
  rounds = 5 if quick else 9
  cases = [c for c in CASES if c.quick or not quick]
  for case in cases:
    yield shm_row(programs, case, rounds, "shared")
  for case in cases[:2] if quick else cases:
    yield shm_row(programs, case, rounds, "private")
  yield mixed_row(programs, rounds)
  for library in ("openmpi", "mpich"):
    if not programs.has(f"rank_bench_{library}") or not jobs.has_launcher(library):
      yield Row("process", f"mpi ({library})", skipped="its library or its launcher is not here")
      continue
    for case in cases:
      yield from mpi_rows(programs, case, rounds, library)
  for tls in ("all", "tcp"):
    yield ucx_row(programs, tls, 3 if quick else 5, "message", PERFTEST_TARGET)
  yield ucx_row(programs, "all", 3 if quick else 5, "direct", PERFTEST_TARGET)
  for transport in ("shm",) if quick else ("shm", "ucx", "gloo"):
    yield from whole_rows(programs, APART, 3 if quick else 5, transport)
