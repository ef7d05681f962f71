# SPDX-License-Identifier: Apache-2.0
"""A rank that dies: all others end in time, with one line, and leave nothing."""

import itertools
import signal
import time
import unittest

import processes
from processes import SMALL

LAYOUTS = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")
RANKS = {"source": 1, "target": 3, "first": 0}
POINTS = ("prepare", "start", "middle", "end", "verify")
# Each point with one of the ranks in turn: who notices a death, and how, is the same over all transports.
SOME = list(zip(POINTS, itertools.cycle(RANKS)))


class Faults(processes.ProcessTest):
    def check(self, transport):
        self.need(transport)
        for point, who in itertools.product(POINTS, RANKS) if transport == "shm" else SOME:
            with self.subTest(f"{who} at {point}"):
                rank, start = RANKS[who], time.monotonic()
                code, out, err = self.run_all(
                    "run", *SMALL, *LAYOUTS, "--transport", transport, "--spawn", "--verify",
                    "--json", "--deadline", 30,
                    env={"RESHARD_TEST_KILL": f"rank={rank},at={point}"},
                )  # fmt: skip
                self.assertEqual((code, out), (1, ""))
                self.one_line(err, f"rank {rank} was killed by signal 9")
                self.assertLess(time.monotonic() - start, 40)
                self.nothing_left()

    def test_shm(self):
        self.check("shm")

    def test_gloo(self):
        self.check("gloo")

    def test_ucx(self):
        self.check("ucx")

    def test_mpi(self):
        for library in ("openmpi", "mpich"):
            with self.subTest(library):
                self.need_mpi(library)
                for rank in RANKS.values():
                    code, out, _ = self.run_all(
                        "run", *SMALL, *LAYOUTS, "--transport", "mpi", "--verify", "--json",
                        before=processes.mpirun(library, 4),
                        env={"RESHARD_TEST_KILL": f"rank={rank},at=middle"},
                    )  # fmt: skip
                    self.assertNotEqual(code, 0)
                    self.assertNotIn('"verified"', out)
                    self.wait_for(lambda: self.processes() == [], "all ranks to end")

    def test_a_rank_that_stands_still_is_a_deadline_for_all(self):
        self.need("shm")
        for rank in (0, 2):
            with self.subTest(f"rank {rank}"):
                run = self.start(
                    "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--repeat", 1000000,
                    "--deadline", 6,
                )  # fmt: skip
                self.wait_for(lambda run=run: len(self.ranks_of(run)) == 4, "all ranks")
                self.kill(self.ranks_of(run)[rank], signal.SIGSTOP)
                code, out, err = self.end(run)
                self.assertEqual((code, out), (1, ""))
                self.one_line(err)
                # Others that wait for it may be late with it.
                self.assertRegex(err, rf"\branks?( \d+,)* {rank}\b")
                self.nothing_left()

    def test_ranks_that_all_stand_still_are_ended_by_their_parent(self):
        self.need("shm")
        run = self.start(
            "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--repeat", 1000000,
            "--deadline", 5,
        )  # fmt: skip
        self.wait_for(lambda: len(self.ranks_of(run)) == 4, "all ranks")
        for pid in self.ranks_of(run).values():
            self.kill(pid, signal.SIGSTOP)
        code, out, err = self.end(run)
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "ranks 0, 1, 2, 3 stood still for 5 s")
        self.nothing_left()

    def test_of_two_programs_one_that_stands_still_ends_too(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        still, other = (
            self.start(
                "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--role", role,
                "--ranks", ranks, "--rendezvous", f"file://{folder}", "--repeat", 1000000,
                "--deadline", 5,
            )
            for role, ranks in (("source", "0-1"), ("target", "2-3"))
        )  # fmt: skip
        for run in (still, other):
            self.wait_for(lambda run=run: len(self.ranks_of(run)) == 2, "both ranks")
        for pid in self.ranks_of(still).values():
            self.kill(pid, signal.SIGSTOP)
        code, out, err = self.end(still)
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "ranks 0, 1 stood still for 5 s")
        code, out, err = self.end(other)
        self.assertEqual((code, out), (1, ""))
        # It may have waited for both in vain, or have seen one of them end.
        self.one_line(err)
        self.assertRegex(err, r"\branks? [01]\b")
        self.nothing_left()

    def test_a_parent_that_stood_still_itself_does_not_blame_its_ranks(self):
        self.need("shm")
        run = self.start(
            "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--verify", "--json",
            "--repeat", 600, "--deadline", 6,
        )  # fmt: skip
        self.wait_for(lambda: len(self.ranks_of(run)) == 4, "all ranks")
        ranks = self.ranks_of(run).values()
        run.send_signal(signal.SIGSTOP)
        # Its children have ended, and wait to be asked.
        self.wait_for(lambda: all(self.has_ended(pid) for pid in ranks), "the ranks to end")
        run.send_signal(signal.SIGCONT)
        code, _, err = self.end(run)
        self.assertEqual((code, self.complaints(err)), (0, []))
        self.nothing_left()

    def test_a_rank_that_is_told_to_end_says_by_which_signal(self):
        self.need("shm")
        for rank in (0, 3) * 4:  # the signal comes at another moment of the fill each time
            with self.subTest(f"rank {rank}"):
                run = self.start(
                    "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--repeat", 1000000
                )
                self.wait_for(lambda run=run: len(self.ranks_of(run)) == 4, "all ranks")
                self.wait_for(
                    lambda run=run: all(map(self.catches_term, self.ranks_of(run).values())),
                    "all ranks to join",
                )
                self.kill(self.ranks_of(run)[rank], signal.SIGTERM)
                code, out, err = self.end(run)
                self.assertEqual((code, out), (1, ""))
                self.one_line(err, f"rank {rank}", "interrupted by signal 15 (Terminated)")
                self.nothing_left()

    def test_of_two_programs_both_say_who_died(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        for rank in (0, 1, 2, 3):
            with self.subTest(f"rank {rank}"):
                runs = [
                    self.start(
                        "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--role", role,
                        "--ranks", ranks, "--rendezvous", f"file://{folder}", "--job", f"job{rank}",
                        env={"RESHARD_TEST_KILL": f"rank={rank},at=start"},
                    )
                    for role, ranks in (("source", "0-1"), ("target", "2-3"))
                ]  # fmt: skip
                for code, out, err in map(self.end, runs):
                    self.assertEqual((code, out), (1, ""))
                    self.one_line(err, f"rank {rank}")
                self.nothing_left()

    def test_without_a_parent_the_first_that_lives_speaks(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        for dead, speaker in ((0, 1), (1, 0), (3, 0)):
            with self.subTest(f"rank {dead}"):
                runs = [
                    self.start(
                        "run", *SMALL, *LAYOUTS, "--transport", "shm",
                        "--rendezvous", f"file://{folder}", "--job", f"job{dead}",
                        env={
                            "RANK": str(rank),
                            "WORLD_SIZE": "4",
                            "RESHARD_TEST_KILL": f"rank={dead},at=start",
                        },
                    )
                    for rank in range(4)
                ]  # fmt: skip
                ends = [self.end(run) for run in runs]
                for rank, (code, out, err) in enumerate(ends):
                    self.assertEqual(out, "")
                    self.assertEqual(code, -9 if rank == dead else 1)
                    if rank == speaker:
                        self.one_line(err, f"rank {dead}")
                    else:
                        self.assertEqual(err, "", f"rank {rank}")
                self.nothing_left()

    def test_a_hook_in_another_form_is_refused(self):
        code, _, err = self.run_all(
            "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn",
            env={"RESHARD_TEST_KILL": "rank=1"},
        )  # fmt: skip
        self.assertEqual(code, 2)
        self.one_line(err, "RESHARD_TEST_KILL=rank=1", "at=")


if __name__ == "__main__":
    unittest.main()
