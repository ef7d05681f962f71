# SPDX-License-Identifier: Apache-2.0
# Protects: ranks on several hosts form one group over TCP, and notice the loss of a host.
"""Each host is a network namespace; the tests are skipped if those are not permitted."""

import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

from hosts import Network

RANK = os.environ["RESHARD_NET_RANK"]
PORT = 29417


class Rendezvous(unittest.TestCase):
    def setUp(self):
        self.network = Network(3)
        self.addCleanup(self.network.down)
        problem = self.network.up()
        if problem:
            self.skipTest(f"network namespaces are not allowed here: {problem}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.secret = self.write_secret("secret", "what only this job knows")

    def write_secret(self, name, text):
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text + "\n")
        return str(path)

    def start(self, host, rank, size, what, secret=None, url=None):
        url = url or f"tcp://{self.network.address(0)}:{PORT}"
        process = self.network.start(host, RANK, url, str(rank), str(size), secret or self.secret, what)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        return process

    def test_ranks_on_three_hosts_are_one_group_whoever_comes_first(self):
        ranks = [self.start(host, host, 3, "talk") for host in (2, 1, 0)]
        for rank in ranks:
            self.assertEqual(rank.stdout.read(), "joined\ndone\n")

    def test_a_folder_that_all_hosts_see_does_as_well(self):
        url = f"file://{self.folder}"
        ranks = [self.start(host, host, 3, "talk", url=url) for host in (1, 0, 2)]
        for rank in ranks:
            self.assertEqual(rank.stdout.read(), "joined\ndone\n")

    def test_a_wrong_secret_is_refused_and_the_group_goes_on(self):
        zero = self.start(0, 0, 2, "talk")
        wrong = self.start(1, 1, 2, "talk", self.write_secret("other", "what only that job knows"))
        self.assertEqual(
            wrong.stdout.read(), "join: the secret is not that of rank 0\n"
        )
        right = self.start(2, 1, 2, "talk")
        self.assertEqual(right.stdout.read(), "joined\ndone\n")
        self.assertEqual(zero.stdout.read(), "joined\ndone\n")

    def test_a_process_killed_on_one_host_is_known_on_the_others(self):
        ranks = [self.start(host, host, 3, "wait") for host in range(3)]
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "joined\n")
        ranks[1].send_signal(signal.SIGKILL)
        for rank in (ranks[0], ranks[2]):
            self.assertIn("rank 1 died", rank.stdout.read())

    def test_a_host_that_vanishes_is_noticed(self):
        ranks = [self.start(host, host, 3, "wait") for host in range(3)]
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "joined\n")
        began = time.monotonic()
        self.network.unplug(1)
        self.assertIn("rank 1 died", ranks[0].stdout.read())
        self.assertIn("rank 1 died", ranks[2].stdout.read())
        # The disconnected rank cannot know that it is the one that is unreachable.
        self.assertIn("rank 0 died", ranks[1].stdout.read())
        print(f"noticed after {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
