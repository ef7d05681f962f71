# SPDX-License-Identifier: Apache-2.0
"""Refits between hosts with slow links: seconds over the minimum that the busiest link allows."""

import secrets
import tempfile

import hosts as hosts_module
import jobs
from machine import Watch
from process_part import checked, job_arguments
from process_part import Case as ProcessCase
from programs import arguments
from rows import Row

HOSTS, RANKS_PER_HOST, BITS_PER_SECOND = 4, 2, 1e9
TARGET = 0.9
PORT = 42137
INTERFACE = hosts_module.INTERFACE

# The trainer on two hosts, the engine on the other two; and both on all four.
CASES = [
  ProcessCase("qwen3-30b-a3b, 1 layer, trainer on 2 hosts, engine on 2", 8, {
    "config": "qwen3-30b-a3b", "layers": 1, "vocab": 8192,
    "from": "megatron:tp=2,ep=4,etp=1,dp=2", "to": "vllm:tp=4,offset=4",
  }, True),
  ProcessCase("qwen3-30b-a3b, 1 layer, both on all 4 hosts", 8, {
    "config": "qwen3-30b-a3b", "layers": 1, "vocab": 8192,
    "from": "megatron:tp=2,ep=8,etp=1,dp=4", "to": "vllm:tp=8",
  }),
]  # fmt: skip


def run_on_hosts(programs, case, transport, hosts, rounds):
  with tempfile.NamedTemporaryFile("w", prefix="reshard-bench-") as secret:  # mode 0600
    secret.write(secrets.token_hex(32) + "\n")
    secret.flush()
    return run_with_secret(programs, case, transport, hosts, rounds, secret.name)


def run_with_secret(programs, case, transport, hosts, rounds, secret_file):
  argv = [*job_arguments(programs, case, transport=transport.split()[0], interface=INTERFACE)]
  argv += arguments(rounds=rounds, staging=64 << 20, hosts=RANKS_PER_HOST)
  # Namespaces of one machine could reach each other's memory: allow only network transports.
  argv += arguments(path="message", rendezvous=f"tcp://{hosts.address(0)}:{PORT}")
  argv += ["--secret-file", secret_file]
  if not transport.startswith("mpi"):
    environment = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}
    argv = [programs.path("rank_bench"), *argv]
    return jobs.run_by_hand(argv, case.ranks, lambda r: hosts.command(r // RANKS_PER_HOST), environment)
  library = transport.split()[1]
  argv = [programs.path(f"rank_bench_{library}"), *argv]
  return jobs.run_by_mpi_on_hosts(library, argv, case.ranks, hosts, RANKS_PER_HOST, INTERFACE)


def row_of(case, transport, result, noise):
  checked(case, result)
  least = result["busiest_link_bytes"] * 8 / BITS_PER_SECOND
  seconds = sorted(result["seconds_refit"])
  median = seconds[len(seconds) // 2]
  note = f"{result['busiest_link_bytes'] / 1e6:.0f} MB on the busiest link, {least:.2f} s at least; "
  note += f"trainer's ranks are done after {result['first_done']:.2f} to {result['last_done']:.2f} s"
  return Row(
    "link", f"{transport}: {case.name}", "s", median, seconds[0], least, "busiest link alone",
    least / median, TARGET, noise=noise, note=note, samples=result,
  )  # fmt: skip


def measure(programs, quick):
  why = hosts_module.why_not()
  if why:
    yield Row("link", "refits between hosts with slow links", skipped=why)
    return
  for case in CASES:
    if quick and not case.quick:
      continue
    for transport in ("ucx", "gloo", "mpi openmpi", "mpi mpich"):
      if transport.startswith("mpi") and not programs.has(f"rank_bench_{transport.split()[1]}"):
        yield Row("link", f"{transport}: {case.name}", skipped="this MPI is not here")
        continue
      watch = Watch()
      with hosts_module.hosts(HOSTS) as hosts:
        (result,) = run_on_hosts(programs, case, transport, hosts, 3 if quick else 5)
      yield row_of(case, transport, result, watch.noise())
