# SPDX-License-Identifier: Apache-2.0
"""What processes show to others while they run, and leave behind however they end."""

import signal
import unittest

import processes
from processes import SMALL

LAYOUTS = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")
LOOPBACK = ("0100007F:", "00000000000000000000000001000000:")


class Traces(processes.ProcessTest):
    def sockets_of(self, run):
        """Addresses at which the ranks of a run listened, as often as was looked until it ended."""
        seen, ranks = set(), {}
        while run.poll() is None:
            if len(ranks) < 4:
                ranks = self.ranks_of(run)
            for pid in (run.pid, *ranks.values()):
                seen |= self.listening(pid)
        self.assertEqual(set(ranks), {0, 1, 2, 3})
        return seen

    def check_sockets(self, transport):
        self.need(transport)
        run = self.start(
            "run", *SMALL, *LAYOUTS, "--transport", transport, "--path", "message", "--spawn",
            "--verify", "--json", "--repeat", 100,
        )  # fmt: skip
        seen = self.sockets_of(run)
        code, _, err = self.end(run)
        self.assertEqual((code, self.complaints(err)), (0, []))
        self.assertEqual({s for s in seen if not s.startswith(LOOPBACK)}, set())
        return seen

    def test_ranks_of_one_host_listen_nowhere_over_shm(self):
        self.assertEqual(self.check_sockets("shm"), set())

    def test_ranks_of_one_host_listen_on_loopback_over_gloo(self):
        self.check_sockets("gloo")

    def test_ranks_of_one_host_listen_on_loopback_over_ucx(self):
        self.assertNotEqual(self.check_sockets("ucx"), set(), "the test sees no sockets")

    def test_a_launcher_that_is_killed_leaves_nothing(self):
        self.need("shm")
        run = self.start(
            "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--repeat", 1000000
        )
        self.wait_for(lambda: len(self.ranks_of(run)) == 4, "all ranks")
        run.kill()
        self.end(run)
        self.wait_for(lambda: self.processes() == [], "the ranks to end")
        self.nothing_left()

    def gathering(self, *more):
        """A run whose first rank has written where it waits for others that never come."""
        folder = self.d / "meet"
        folder.mkdir(exist_ok=True)
        run = self.start(
            "run", *SMALL, *LAYOUTS, "--transport", "shm", "--role", "source", *more,
            "--rendezvous", f"file://{folder}",
        )  # fmt: skip
        self.wait_for((folder / "reshard-reshard").exists, "the rendezvous file")
        return run, folder

    def test_who_is_interrupted_in_join_says_so_and_removes_its_file(self):
        for more in (("--ranks", "0"), ("--ranks", "0-1", "--spawn")):
            for number, words in (
                (signal.SIGINT, "interrupted"),
                (signal.SIGTERM, "interrupted by signal 15 (Terminated)"),
            ):
                with self.subTest(f"{more} {number.name}"):
                    run, folder = self.gathering(*more)
                    run.send_signal(number)
                    code, out, err = self.end(run)
                    self.assertEqual((code, out), (130, ""))
                    self.one_line(err, words)
                    self.assertEqual(list(folder.iterdir()), [])
                    self.nothing_left()

    def test_the_file_of_a_rank_that_is_killed_in_join_is_removed(self):
        run, folder = self.gathering("--ranks", "0-1", "--spawn")
        self.kill(self.ranks_of(run)[0])
        code, out, err = self.end(run)
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "rank 0 was killed by signal 9")
        self.assertEqual(list(folder.iterdir()), [])
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
