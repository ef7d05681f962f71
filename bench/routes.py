#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/routes.md. Measured: one trainer rank to replicas on other hosts, whose links carry 1 Gb/s.

  bench/routes.py [build folder] [--torch PYTHON] [--rate 1gbit]
  bench/routes.py [build folder] --simulated     the layouts of docs/simulation.md where ranks relay, and more replicas

Direct and relayed refits run in turn between the same processes, which check every byte afterwards. With a Python
that has torch, its broadcast and a chain of chunks move as many bytes on the same links in the same minute.
"""

import argparse
import json
import pathlib
import secrets
import statistics
import subprocess
import tempfile

import hosts as hosts_module
import jobs
from predict_published import GB200, H100
from process_part import Case, checked, job_arguments
from programs import Programs, arguments, run
from published_part import PAIRS, ranks_of
from report import number

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNITS = {"mbit": 1e6, "gbit": 1e9}
REPLICAS = (1, 2, 4, 8)
ROUNDS = 3
PORT, TORCH_PORT = 42141, 42142
MODEL = {"config": "qwen3-4b", "layers": 1, "vocab": 2048, "from": "megatron:tp=1"}


def refits(programs, hosts, replicas, secret_file):
  case = Case("", replicas + 1, {**MODEL, "to": f"vllm:tp=1,replicas={replicas},offset=1"})
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="gloo", interface=hosts_module.INTERFACE)]
  argv += arguments(rounds=ROUNDS, staging=64 << 20, hosts=1, path="message")
  argv += arguments(rendezvous=f"tcp://{hosts.address(0)}:{PORT}") + ["--secret-file", secret_file]
  if replicas > 1:
    argv += arguments(ways="routed")
  (result,) = jobs.run_by_hand(argv, case.ranks, hosts.command)
  checked(case, result)
  return result


def torch_ways(python, hosts, replicas, num_bytes):
  argv = [python, str(ROOT / "bench" / "python" / "torch_chain.py"), str(num_bytes), str(ROUNDS)]
  environment = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(TORCH_PORT), "OMP_NUM_THREADS": "1"}
  environment["GLOO_SOCKET_IFNAME"] = hosts_module.INTERFACE
  processes = []
  for rank in range(replicas + 1):
    words = [f"{name}={value}" for name, value in {**environment, "RANK": rank, "WORLD_SIZE": replicas + 1}.items()]
    command = [*hosts.command(rank), "env", *words, *argv]
    processes.append(subprocess.Popen(command, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True))
  (result,) = jobs.finish(processes)
  return result


def line_of(programs, replicas, secret_file, python, rate):
  with hosts_module.hosts(replicas + 1, rate) as hosts:
    result = refits(programs, hosts, replicas, secret_file)
    copy = result["bytes"] // replicas
    if python:
      result |= torch_ways(python, hosts, replicas, copy)
  least = copy * 8 / (float(rate[:-4]) * UNITS[rate[-4:]])
  cells = [str(replicas)]
  for way in ("refit", "routed", "broadcast", "chain"):
    times = result.get(f"seconds_{way}")
    median = statistics.median(times) if times else None
    cells.append(f"{median:.2f} s ({median / least:.2f})" if times else "")
  return [*cells, f"{least:.2f} s"]


def simulated(programs, model, source, target, cluster):
  """Cells of a row, or None where no rank relays."""
  argv = [programs.path("reshard"), "plan", "--model", programs.config(model), "--from", source, "--to", target]
  argv += ["--cluster", str(ROOT / "examples" / "clusters" / f"{cluster}.json"), "--json"]
  direct, routed = (json.loads(run([*argv, "--routes", routes])) for routes in ("direct", "auto"))
  relays = routed["relays"]
  if not relays["used"]:
    return None
  # A lower bound for all routes: the busiest interface of the direct plan takes its bytes so long.
  least = direct["bound_seconds"] * relays["least_bytes"] / relays["direct_bytes"]
  by_nic = direct["bound_by"].startswith("NIC")
  name = f"{model}, {source} to {target}"
  cells = [name, "GB200" if cluster == GB200 else "H100", number(direct["predicted_seconds"], "s")]
  return [*cells, number(routed["predicted_seconds"], "s"), number(least, "s") if by_nic else ""]


def print_simulated(programs):
  print("| layouts | cluster | direct | routed | bound |")
  print("| --- | --- | ---: | ---: | ---: |")
  pairs = [("qwen3-4b", "megatron:tp=8", f"vllm:tp=8,replicas={n},offset=8", H100) for n in (2, 4, 8, 32, 128)]
  for model, source, target, published in PAIRS:
    if "colocated" not in published:
      target = f"{target},offset={ranks_of(programs, model, source)}"
      pairs.append((model, source, target, GB200 if "GB200" in published else H100))
  for pair in pairs:
    if cells := simulated(programs, *pair):
      print("| " + " | ".join(cells) + " |", flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build")
  parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch")
  parser.add_argument("--rate", default="1gbit", help="of links: a number and mbit or gbit")
  parser.add_argument("--simulated", action="store_true")
  chosen = parser.parse_args()
  programs = Programs(chosen.build, ROOT)
  if chosen.simulated:
    return print_simulated(programs)
  if why := hosts_module.why_not():
    raise SystemExit(f"no hosts can be emulated here: {why}")
  with tempfile.NamedTemporaryFile("w", prefix="reshard-bench-") as secret:  # mode 0600
    secret.write(secrets.token_hex(32) + "\n")
    secret.flush()
    print("| replicas | direct | routed | torch broadcast | torch chain | bound |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for replicas in REPLICAS:
      cells = line_of(programs, replicas, secret.name, chosen.torch, chosen.rate)
      print("| " + " | ".join(cells) + " |", flush=True)
  return None


if __name__ == "__main__":
  main()
