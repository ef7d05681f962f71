# SPDX-License-Identifier: Apache-2.0
"""Simulated refits against measured ones: in one process, over shared memory, and over slow links.

The cluster that is simulated is this machine, with rates that are measured in the same minute by something
else than the refit: plain copies of as many bytes in the same memory, plain sockets, a refit of nearly nothing
(for what a barrier takes), and one tensor sent whole (for what a message within the host takes).
"""

import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import hosts as hosts_module
import jobs
import link_part
from machine import Watch, available_memory
from process_part import STAGING, Case, checked, job_arguments, model_case
from programs import arguments, run, run_lines
from rows import BenchError, Row, rates

MOST_MEMORY = 12 * 2**30
MOST_ERROR = 0.15
PROBE_PORT, PROBE_BYTES = 42139, 96 << 20
GROUPS = 3  # of processes, one after another, that refit in turn
LINK = ("500mbit", "1gbit")

IN_PROCESS = [
  ("llama-3.1-8b", 3, "megatron:tp=2", "megatron:tp=4"),
  ("qwen3-30b-a3b", 1, "megatron:ep=4,etp=1,dp=4", "megatron:ep=8,etp=1,dp=8"),
  ("qwen3-30b-a3b", 1, "megatron:ep=4,etp=1,dp=4", "vllm:tp=8"),
]
PROCESSES = [
  model_case("llama-3.1-8b", 3, 2, "megatron:tp=2", "vllm:tp=2"),
  model_case("llama-3.1-8b", 3, 2, "megatron:tp=1", "vllm:tp=1,offset=1"),
  model_case("qwen3-30b-a3b", 1, 2, "megatron:ep=2,etp=1,dp=2", "vllm:tp=2"),
  model_case("qwen3-30b-a3b", 1, 4, "megatron:tp=2,ep=2,etp=1", "vllm:tp=2,offset=2"),
]
# A refit of 32 KiB: two barriers, and nothing else that takes time.
NOTHING = {"tensor": "64x64", "count": 4}


def fastest_copy(result, prefix=""):
  """Bytes per second of the fastest plain copy that a benchmark made by turns with its refit."""
  ways = [key for key in result if key.startswith(f"seconds_{prefix}") and key != "seconds_refit"]
  num_bytes = result.get("plain_bytes", result["bytes"])
  return max(rates(result[way], num_bytes)[0] for way in ways) * 1e9


def barrier_seconds(programs, ranks):
  """Of one barrier between this many processes of one host."""
  case = Case("nothing", ranks, {**NOTHING, "from": f"0:{ranks}", "to": f"0:{ranks}"})
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="shm")]
  (result,) = jobs.run_by_hand([*argv, *arguments(rounds=31, staging=STAGING)], ranks)
  return statistics.median(result["seconds_refit"]) / 2


def of_one_core(programs, barrier):
  """(bytes per second that a process copies from another's memory, copies of a byte in a message to it beside
  packing and unpacking), from whole tensors that one process reads, or receives in place."""
  case = Case("whole tensors", 2, {"tensor": "4096x14336", "count": 6, "from": "0:1", "to": "0:1:1"})
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="shm")]
  argv += arguments(rounds=7, staging=STAGING, path="message", ways="pull")
  (result,) = jobs.run_by_hand(argv, 2)
  copied = fastest_copy(result, "pull")
  seconds = statistics.median(result["seconds_refit"]) - barrier
  return copied, seconds * copied / result["bytes"]


def run_cost_of(seconds, num_bytes, runs, core_rate, host_rate, cores):
  """What each contiguous run costs beside its bytes: a core its seconds, and the memory as many more bytes."""
  return {
    "seconds_per_run": max(0.0, (seconds - num_bytes / cores / core_rate) / (runs / cores)),
    "bytes_per_run": max(0.0, (seconds * host_rate - num_bytes) / runs),
  }


def run_cost_of_processes(programs, barrier, core_rate):
  """run_cost_of() two processes that read parts of rows from each other's memory."""
  case = Case("halves of rows", 2, {"tensor": "2048x384", "count": 384, "from": "0:2", "to": "1:2"})
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="shm")]
  argv += arguments(rounds=7, staging=STAGING, path="direct", ways="pull")
  (result,) = jobs.run_by_hand(argv, 2)
  seconds = statistics.median(result["seconds_refit"]) - 2 * barrier
  host_rate = max(core_rate, fastest_copy(result, "pull"))
  return run_cost_of(seconds, result["bytes"], result["bytes"] / 384, core_rate, host_rate, 2)


def probe_server():
  """Reads all that one client sends; answers each of the first pings; prints seconds and seconds of CPU."""
  with socket.create_server(("", PROBE_PORT)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    with connection:
      for _ in range(20):
        connection.sendall(connection.recv(1))
      buffer, left = bytearray(1 << 20), PROBE_BYTES
      begin, cpu = time.monotonic(), time.process_time()
      while left > 0:
        left -= connection.recv_into(buffer)
      print(json.dumps([time.monotonic() - begin, time.process_time() - cpu]))


def probe_client(address):
  """Prints the seconds of a ping, and the seconds of CPU to send."""
  with socket.create_connection((address, PROBE_PORT)) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begin = time.monotonic()
    for _ in range(20):
      connection.sendall(b".")
      connection.recv(1)
    ping = (time.monotonic() - begin) / 20
    block, cpu = bytes(1 << 20), time.process_time()
    for _ in range(PROBE_BYTES // len(block)):
      connection.sendall(block)
    print(json.dumps([ping, time.process_time() - cpu]))


def link_rates(hosts):
  """(bytes per second, seconds of latency, bytes per second of a core) of a plain socket between two hosts."""
  me = [sys.executable, str(pathlib.Path(__file__))]
  server = subprocess.Popen([*hosts.command(0), *me, "server"], stdout=subprocess.PIPE, text=True)
  try:
    server.stdout.readline()
    sent = run([*hosts.command(1), *me, hosts.address(0)])
    received, _ = server.communicate(timeout=120)
  finally:
    server.kill()
  ping, send_cpu = json.loads(sent)
  seconds, receive_cpu = json.loads(received)
  return PROBE_BYTES / seconds, ping / 2, PROBE_BYTES / max(send_cpu, receive_cpu, 1e-3)


def run_cost_in_process(programs):
  """run_cost_of() threads: of one its seconds, of two the bytes of memory."""
  argv = [programs.path("refit_bench"), "--tensor", "2048x768", "--count", "192", "--from", "0:1"]
  seconds, wasted = [], []
  for _ in range(GROUPS):
    for result in run_lines([*argv, "--to", "1:4", "--threads", "1,2", "--rounds", "5"]):
      rate, median = fastest_copy(result), statistics.median(result["seconds_refit"])
      runs = sum(n / run for run, n in zip(result["run_bytes"], result["bytes_in_runs"]))
      cost = run_cost_of(median, result["bytes"], runs, rate, rate, 1)
      (seconds if result["threads"] == 1 else wasted).append(cost)
  return {
    "seconds_per_run": statistics.median(cost["seconds_per_run"] for cost in seconds),
    "bytes_per_run": statistics.median(cost["bytes_per_run"] for cost in wasted),
  }


def cluster_of(name, ranks_per_host, cores, core_rate, host_rate, run_cost, **more):
  """This machine as a cluster. Rates in bytes per second; `run_cost` as of run_cost_of()."""
  copies = {"cores": cores, "bytes_per_second": core_rate, "host_bytes_per_second": host_rate}
  copies |= run_cost
  comment = "Rates measured on this machine."
  return {"name": name, "comment": comment, "ranks_per_host": ranks_per_host, "copies": copies, **more}


def predicted(programs, options, cluster, folder):
  """What `reshard plan --cluster` says of a case of rank_bench or refit_bench."""
  config = json.loads(pathlib.Path(programs.config(options["config"])).read_text())
  config["vocab_size"] = options["vocab"]
  model, file = pathlib.Path(folder) / "config.json", pathlib.Path(folder) / "cluster.json"
  model.write_text(json.dumps(config))
  file.write_text(json.dumps(cluster))
  argv = [programs.path("reshard"), "plan", "--model", str(model), "--layers", str(options["layers"])]
  return json.loads(
    run([*argv, "--from", options["from"], "--to", options["to"], "--cluster", str(file), "--json"])
  )


def row_of(what, plan, result, noise):
  if plan["bytes_total"] != result["bytes"]:
    raise BenchError(f"{what}: {plan['bytes_total']} bytes simulated, {result['bytes']} measured")
  median = statistics.median(result["seconds_refit"])
  error = plan["predicted_seconds"] / median - 1
  note = f"predicted {plan['predicted_seconds'] * 1e3:.1f} ms, measured {median * 1e3:.1f} ms, "
  note += f"bound {plan['bound_seconds'] * 1e3:.1f} ms by {plan['bound_by']}"
  samples = {"seconds_refit": result["seconds_refit"]}
  samples |= {key: plan[key] for key in ("predicted_seconds", "bound_seconds", "bound_by")}
  return Row(
    "simulate", what, "", abs(error), None, target=MOST_ERROR, target_is_most=True, target_is_ratio=False,
    noise=noise, note=note, samples=samples,
  )  # fmt: skip


def median_row(rows):
  """Of several runs the one with the median error: where the kernel places memory changes copies by half."""
  return sorted(rows, key=lambda row: row.figure)[len(rows) // 2]


def in_process_pair(programs, run_cost, rounds, folder, case):
  """One run with one thread and one with two: refits in turn with plain copies in the same process."""
  model, layers, source, target = case
  options = {"config": model, "layers": layers, "vocab": 8192, "from": source, "to": target}
  argv = [programs.path("refit_bench"), *job_arguments(programs, Case("", 1, options))]
  watch = Watch()
  one, both = run_lines([*argv, "--threads", "1,2", "--rounds", str(rounds)])
  noise, core_rate = watch.noise(), fastest_copy(one)
  host_rate, rows = max(core_rate, fastest_copy(both)), []
  for result in (one, both):
    cluster = cluster_of(
      "one process", 64, result["threads"], core_rate, host_rate, run_cost, hosts=1, one_process=True
    )
    plan = predicted(programs, options, cluster, folder)
    counted = "1 thread" if result["threads"] == 1 else "2 threads"
    rows.append(row_of(f"one process, {counted}: {model}, {source} to {target}", plan, result, noise))
  return rows


def in_process_rows(programs, run_cost, rounds, folder):
  for case in IN_PROCESS:
    runs = [in_process_pair(programs, run_cost, rounds, folder, case) for _ in range(GROUPS)]
    yield from map(median_row, zip(*runs))


def process_row(programs, rounds, folder, case, path):
  """One run: refits in turn with plain copies in the same memory."""
  barrier = barrier_seconds(programs, case.ranks)
  core_rate, copies = of_one_core(programs, barrier)
  run_cost = run_cost_of_processes(programs, barrier, core_rate)
  argv = [programs.path("rank_bench"), *job_arguments(programs, case, transport="shm")]
  argv += arguments(rounds=rounds, staging=STAGING, path=path, ways="pull")
  watch = Watch()
  (result,) = jobs.run_by_hand(argv, case.ranks)
  host_rate = fastest_copy(result, "pull")
  if result["most_delivered"] == result["bytes"]:
    core_rate = host_rate  # One rank makes the plain copies, too.
  cluster = cluster_of(
    "shared memory", 64, 2, core_rate, max(core_rate, host_rate), run_cost, hosts=1,
    direct=path == "direct", messages={"seconds_per_barrier": barrier, "copies_within_host": copies},
  )  # fmt: skip
  plan = predicted(programs, case.options, cluster, folder)
  return row_of(f"shm, {path} path: {case.name}", plan, checked(case, result), watch.noise())


def process_rows(programs, rounds, folder):
  for case in PROCESSES:
    for path in ("direct", "message"):
      yield median_row(
        [process_row(programs, rounds, folder, case, path) for _ in range(GROUPS)]
      )


def link_rows(programs, run_cost, rounds, folder):
  core_rate, copies = of_one_core(programs, 0)
  for rate in LINK:
    for case in link_part.CASES:
      with hosts_module.hosts(link_part.HOSTS, rate) as hosts:
        nic, latency, core = link_rates(hosts)
        watch = Watch()
        (result,) = link_part.run_on_hosts(programs, case, "gloo", hosts, rounds)
        noise = watch.noise()
      cluster = cluster_of(
        "namespaces", link_part.RANKS_PER_HOST, 2, core_rate, core_rate, run_cost, direct=False,
        nics={"bytes_per_second": nic, "latency_seconds": latency, "core_bytes_per_second": core},
        messages={"copies_within_host": copies},
      )  # fmt: skip
      plan = predicted(programs, case.options, cluster, folder)
      yield row_of(f"links of {rate}, gloo: {case.name}", plan, checked(case, result), noise)


def measure(programs, quick):
  if available_memory() < MOST_MEMORY:
    yield Row("simulate", "simulated refits", skipped=f"less than {MOST_MEMORY >> 30} GiB are free")
    return
  rounds = 5 if quick else 11
  run_cost = run_cost_in_process(programs)
  with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
    yield from in_process_rows(programs, run_cost, rounds, folder)
    yield from process_rows(programs, rounds, folder)
    why = hosts_module.why_not()
    if why:
      yield Row("simulate", "links of limited rate", skipped=why)
    else:
      yield from link_rows(programs, run_cost, 3 if quick else 5, folder)


if __name__ == "__main__":
  probe_server() if sys.argv[1] == "server" else probe_client(sys.argv[1])
