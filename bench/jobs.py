# SPDX-License-Identifier: Apache-2.0
"""Starts one process per rank of a benchmark, by a launcher or by hand, and reads what rank 0 prints."""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile

from programs import parse_lines
from rows import BenchError

LIMIT_SECONDS = 900
LAUNCHERS = {
  "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
  "mpich": ["mpirun.mpich"],
}


def has_launcher(library):
  return shutil.which(LAUNCHERS[library][0]) is not None


@contextlib.contextmanager
def meeting_place():
  """The URL of a rendezvous in a folder of its own."""
  with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
    yield f"file://{folder}"


def finish(processes):
  """Waits for all; what the first printed as lines of JSON, beside what a launcher may say. Ends them
  all when one fails."""
  try:
    out, _ = processes[0].communicate(timeout=LIMIT_SECONDS)
    for process in processes:
      process.wait(timeout=60)
  except subprocess.TimeoutExpired as expired:
    raise BenchError(f"{' '.join(processes[0].args)}: no end after {expired.timeout:.0f} s") from None
  finally:
    for process in processes:
      if process.poll() is None:
        process.kill()
        process.wait()
  for rank, process in enumerate(processes):
    if process.returncode != 0:
      raise BenchError(f"{' '.join(process.args)}: rank {rank} ended with {process.returncode}")
  return parse_lines("\n".join(line for line in out.splitlines() if line.startswith("{")))


def run_by_hand(argv, ranks, prefix=lambda rank: [], environment=None):
  """The lines of rank 0. `prefix(rank)` goes before its command: where it is to run."""
  with meeting_place() as url:
    processes = []
    for rank in range(ranks):
      env = {**os.environ, **(environment or {}), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
      command = [*prefix(rank), *argv]
      if "--rendezvous" not in argv:
        command += ["--rendezvous", url]
      pipe = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
      processes.append(subprocess.Popen(command, env=env, stdout=pipe, text=True))
    return finish(processes)


def run_by_mpi(library, argv, ranks, options=(), environment=None):
  """The lines of rank 0 under the launcher of this MPI."""
  with meeting_place() as url:
    command = [*LAUNCHERS[library], *options, "-n", str(ranks), *argv]
    if "--rendezvous" not in argv:
      command += ["--rendezvous", url]
    env = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    return finish([process])


def run_by_mpi_on_hosts(library, argv, ranks, hosts, per_host, interface):
  """The lines of rank 0, with this many ranks on each host; the launcher itself is on the first."""
  with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
    agent = os.path.join(folder, "agent")
    cases = "".join(
      f'{hosts.address(h)}|{hosts.name(h)}) exec {shlex.join(hosts.command(h))} "$@";;\n'
      for h in range(hosts.count)
    )
    with open(agent, "w") as script:
      # The remote shell for the launcher: agent [options] HOST COMMAND...
      script.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n')
      script.write(f'set -- sh -c "$*"\ncase $host in\n{cases}esac\nexit 1\n')
    os.chmod(agent, 0o700)
    names = [hosts.address(h) for h in range(hosts.count)]
    if library == "openmpi":
      places = ",".join(f"{name}:{per_host}" for name in names)
      options = ["--mca", "plm_rsh_agent", agent, "--host", places, "--mca", "btl", "tcp,self,vader"]
      options += ["--mca", "btl_tcp_if_include", interface, "--mca", "oob_tcp_if_include", interface]
      options += ["--mca", "orte_keep_fqdn_hostnames", "1"]
      environment = {}
    else:
      options = ["-launcher", "rsh", "-launcher-exec", agent, "-iface", interface]
      options += ["-hosts", ",".join(f"{name}:{per_host}" for name in names)]
      environment = {"FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}
    command = [*hosts.command(0), *LAUNCHERS[library], *options, "-n", str(ranks), *argv]
    process = subprocess.Popen(
      command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    return finish([process])
