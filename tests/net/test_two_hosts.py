# SPDX-License-Identifier: Apache-2.0
# Protects: a refit between two programs on two hosts; each program learns of the death of the other.
"""A trainer and an engine on two hosts that share only a network link."""

import json
import unittest

import processes
from hosts import Network
from processes import SMALL

LAYOUTS = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")
PORT = 29311


class TwoHosts(processes.ProcessTest):
    @classmethod
    def setUpClass(cls):
        cls.network = Network(2)
        cls.addClassCleanup(cls.network.down)
        if reason := cls.network.up():
            raise unittest.SkipTest(f"network namespaces are not allowed here: {reason}")

    def secret(self, text):
        path = self.d / text.replace(" ", "-")
        path.write_text(text)
        path.chmod(0o600)
        return path

    def program(self, host, transport, secret, job, *more, env=None, deadline=30):
        role, ranks = (("source", "0-1"), ("target", "2-3"))[host]
        # Both hosts share a kernel, which would permit access to each other's memory.
        return self.start(
            "run", *SMALL, *LAYOUTS, "--transport", transport, "--interface", "eth0",
            "--rendezvous", f"tcp://{self.network.address(0)}:{PORT}", "--secret-file", secret,
            "--job", job, "--role", role, "--ranks", ranks, "--spawn", "--deadline", deadline,
            "--path", "message", *more,
            before=("ip", "netns", "exec", self.network.hosts[host]), env=env,
        )  # fmt: skip

    def check(self, transport):
        self.need(transport)
        secret = self.secret("the key of both hosts")
        runs = [
            self.program(host, transport, secret, "good", "--verify", "--json") for host in (0, 1)
        ]
        for code, out, err in map(self.end, runs):
            self.assertEqual((code, err), (0, ""))
            said = json.loads(out)
            self.assertTrue(said["verified"])
            self.assertEqual((said["processes"], said["transport"]), (4, transport))
        self.nothing_left()

    def test_ucx(self):
        self.check("ucx")

    def test_gloo(self):
        self.check("gloo")

    def check_death(self, transport):
        self.need(transport)
        secret = self.secret("the key of both hosts")
        for rank in (0, 3):
            with self.subTest(f"rank {rank}"):
                kill = {"RESHARD_TEST_KILL": f"rank={rank},at=middle"}
                runs = [
                    self.program(host, transport, secret, f"dies{rank}", "--verify", env=kill)
                    for host in (0, 1)
                ]
                for code, out, err in map(self.end, runs):
                    self.assertEqual((code, out), (1, ""))
                    self.one_line(err, f"rank {rank}")
                self.nothing_left()

    def test_a_death_over_ucx(self):
        self.check_death("ucx")

    def test_a_death_over_gloo(self):
        self.check_death("gloo")

    def test_a_wrong_secret_from_the_other_host(self):
        good, wrong = self.secret("the key of both hosts"), self.secret("the key of nobody here")
        source = self.program(0, "ucx", good, "refused", deadline=3)
        target = self.program(1, "ucx", wrong, "refused")
        code, out, err = self.end(target)
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "secret")
        code, out, err = self.end(source)
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "2", "3")
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
