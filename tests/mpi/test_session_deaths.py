# SPDX-License-Identifier: Apache-2.0
"""Protects: a process of an MPI job that is killed in any phase of a quantised refit leaves every
survivor with a whole version or one that is marked torn; each is told who died, and gets away.

  test_session_deaths.py openmpi|mpich MPIRUN PROGRAM
"""

import os
import re
import sys

from test_deaths import Job, complaints

RANKS = 8
VICTIMS = (1, 5)  # a trainer, an engine
ENGINES = (3, 4, 5, 6)
PHASES = ("begin", "transfer", "check", "commit", "committed")
WAYS = (
    "receiver_in_place_direct",
    "sender_in_place_messages",
    "receiver_doubled_messages",
    "sender_doubled_direct",
)


def lies(said, victim, way):
    """What survivors' targets hold that no reader may see, one line each."""
    found = []
    for rank in ENGINES:
        if rank == victim:
            continue
        held = re.search(rf"^rank {rank} holds (\w+) (-?\d+) with (\d+) wrong tensors$", said, re.M)
        if not held:
            found.append(f"rank {rank} did not say what it holds")
            continue
        state, version, wrong = held[1], int(held[2]), int(held[3])
        whole = state == "whole" and version in (1, 2) and wrong == 0
        torn = "in_place" in way and state == "torn" and version == 1
        if not (whole or torn):
            found.append(held[0])
    return found


def ways_of(library, number):
    """Half of the ways with each library, the other half in the next phase; all with RESHARD_SLOW_TESTS."""
    if "RESHARD_SLOW_TESTS" in os.environ:
        return WAYS
    first = (number + (library == "mpich")) % 2 * 2
    return WAYS[first : first + 2]


def main():
    library, mpirun, program = sys.argv[1:]
    wrong = 0
    for number, phase in enumerate(PHASES):
        for way in ways_of(library, number):
            victim = VICTIMS[(number + WAYS.index(way)) % 2]
            job = Job(library, mpirun, RANKS)
            said = job.run(program, str(victim), phase, way)
            found = complaints(said, RANKS, victim) + lies(said, victim, way)
            for line in found:
                print(f"{phase}, {way}, victim {victim}: {line}")
            if found:
                print(said)
            wrong += len(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
