# SPDX-License-Identifier: Apache-2.0
"""Protects: when mpirun leaves the survivors of a killed process alone, each of them is told which
process died, and gets away.

  test_deaths.py openmpi|mpich MPIRUN PROGRAM

docs/transports.md says what each launcher does by itself; these are the options that let survivors live.
"""

import os
import subprocess
import sys
import tempfile

RANKS = 4
LIMIT_SECONDS = 100
LAUNCH = {
    "openmpi": (
        ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery"],
        [],
        {},
    ),
    # mpirun of MPICH sees the shell's end, not the process's, and its signal stops at the shell.
    "mpich": (
        ["-disable-auto-cleanup"],
        ["sh", "-c", 'trap : USR1; "$0" "$@"; exit 0'],
        {"UCX_TLS": "^cma"},
    ),
}


def complaints(library, mpirun, program, victim):
    """What is wrong after `victim` was killed, one line each."""
    options, wrapper, environment = LAUNCH[library]
    with tempfile.TemporaryDirectory() as folder:
        command = [mpirun, *options, "-n", str(RANKS), *wrapper, program, folder, str(victim)]
        try:
            done = subprocess.run(
                command,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired as late:
            return [f"still running after {LIMIT_SECONDS} s: {late.stdout}"]
    found = []
    for rank in range(RANKS):
        said = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank} ")]
        if rank == victim:
            if said:
                found.append(f"rank {rank} was killed, but said {said}")
        elif not any("was told: aborted: " in line and f"rank {victim} " in line for line in said):
            found.append(f"rank {rank} was not told that rank {victim} died: {said}")
        elif f"rank {rank} got away" not in said:
            found.append(f"rank {rank} did not get away: {said}")
    return found + ([done.stdout] if found else [])


def main():
    library, mpirun, program = sys.argv[1:]
    wrong = 0
    for victim in (2, 0):
        for line in complaints(library, mpirun, program, victim):
            print(f"victim {victim}: {line}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
