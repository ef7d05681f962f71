# SPDX-License-Identifier: Apache-2.0
"""A session's refits against the plain executor's on the same plan, and quantised targets, converted by
the senders and by the receivers, against the same work done by hand."""

import jobs
from machine import Watch
from process_part import job_arguments, model_case
from programs import arguments
from rows import BenchError, Row, rates

# Of the plain executor's speed; of the same work by hand.
SESSION_TARGET, HAND_TARGET = 0.97, 1.0
TOGETHER = model_case("qwen3-30b-a3b", 1, 2, "megatron:ep=2,etp=1,dp=2", "vllm:tp=2")
APART = model_case("qwen3-30b-a3b", 1, 4, "megatron:tp=2,ep=2,etp=1", "vllm:tp=2,offset=2")
FORMATS = ("mxfp8", "fp8_block")


def run(programs, transport, case, rounds, **more):
  argv = [programs.path("session_bench"), *job_arguments(programs, case, transport=transport)]
  argv += arguments(rounds=rounds, **more)
  if transport == "mpi":
    (result,) = jobs.run_by_mpi("openmpi", argv, case.ranks)
  else:
    (result,) = jobs.run_by_hand(argv, case.ranks)
  return result


def samples_of(result):
  return {k: v for k, v in result.items() if k.startswith(("seconds_", "bytes", "staging", "at_"))}


def plain_row(programs, transport, case, rounds, path):
  watch = Watch()
  result = run(programs, transport, case, rounds, path=path)
  if result["checked_bytes"] < result["bytes"]:
    raise BenchError(f"{case.name}: {result['checked_bytes']} of {result['bytes']} bytes were checked")
  median, best = rates(result["seconds_session"], result["bytes"])
  raw, _ = rates(result["seconds_refit"], result["bytes"])
  return Row(
    "session", f"session, {transport}, {path}: {case.name}", "GB/s", median, best, raw, "the executor alone",
    median / raw, SESSION_TARGET, noise=watch.noise(), note=f"{result['path_session']} path",
    samples=samples_of(result),
  )  # fmt: skip


def quantised_rows(programs, transport, case, rounds, name, path):
  watch = Watch()
  result = run(programs, transport, case, rounds, format=name, path=path)
  if result["different_bytes"] != 0:
    raise BenchError(f"{case.name}: {name} differs in {result['different_bytes']} bytes")
  hand, _ = rates(result["seconds_by_hand"], result["bytes"])
  for way in ("receiver", "sender"):
    median, best = rates(result[f"seconds_{way}"], result["bytes"])
    count = result[f"at_sender_{way}"], result[f"at_receiver_{way}"]
    note = f"{result[f'path_{way}']} path, {count[0]} tensors at the sender, {count[1]} at the receiver"
    yield Row(
      "session", f"BF16 to {name} at the {way}, {transport}: {case.name}", "GB/s", median, best, hand,
      "gather, quantise, copy", median / hand, HAND_TARGET, noise=watch.noise(), note=note,
      samples=samples_of(result),
    )  # fmt: skip


def measure(programs, quick):
  rounds = 5 if quick else 9
  for path in ("direct", "message"):
    yield plain_row(programs, "shm", TOGETHER, rounds, path)
  transports = ["shm"]
  if programs.has("rank_bench_openmpi") and jobs.has_launcher("openmpi"):
    transports.append("mpi")
  else:
    yield Row("session", "mpi (openmpi)", skipped="its library or its launcher is not here")
  for transport in transports:
    path = "automatic" if transport == "shm" else "message"
    for name in FORMATS:
      yield from quantised_rows(programs, transport, APART, rounds, name, path)
