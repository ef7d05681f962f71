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


class Job:
    """A launcher with the options that let survivors live."""

    def __init__(self, library, mpirun, ranks):
        options, self.wrapper, self.environment = LAUNCH[library]
        self.launch = [mpirun, *options, "-n", str(ranks)]

    def run(self, program, *arguments):
        """What all processes said; `program FOLDER arguments...` in each."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                return subprocess.run(
                    [*self.launch, *self.wrapper, program, folder, *arguments],
                    env=os.environ | self.environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=LIMIT_SECONDS,
                ).stdout
            except subprocess.TimeoutExpired as late:
                return f"still running after {LIMIT_SECONDS} s: {late.stdout}"


def complaints(output, ranks, victim):
    """What is wrong after `victim` was killed, one line each."""
    found = []
    for rank in range(ranks):
        said = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        if rank == victim:
            if said:
                found.append(f"rank {rank} was killed, but said {said}")
        elif not any("was told: aborted: " in line and f"rank {victim} " in line for line in said):
            found.append(f"rank {rank} was not told that rank {victim} died: {said}")
        elif f"rank {rank} got away" not in said:
            found.append(f"rank {rank} did not get away: {said}")
    return found


def main():
    library, mpirun, program = sys.argv[1:]
    wrong = 0
    for victim in (2, 0):
        said = Job(library, mpirun, RANKS).run(program, str(victim))
        found = complaints(said, RANKS, victim)
        for line in found:
            print(f"victim {victim}: {line}")
        if found:
            print(said)
        wrong += len(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
