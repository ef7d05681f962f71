# SPDX-License-Identifier: Apache-2.0
"""Hosts of a small network, made of network namespaces: each has an address and a link to a switch."""

import os
import subprocess


def ip(*arguments):
    """Runs ip(8); returns its error text, or "" on success."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    except OSError as error:
        return f"ip: {error}"
    return "" if done.returncode == 0 else done.stderr.strip() or f"ip {arguments[0]} failed"


class Network:
    """`count` hosts behind one bridge. Names contain the process id, so that tests can run in parallel."""

    def __init__(self, count):
        self.tag = f"rs{os.getpid()}"
        self.switch = f"{self.tag}s"
        self.hosts = [f"{self.tag}h{i}" for i in range(count)]

    def up(self):
        """Creates it; returns why that is impossible here, or ""."""
        problem = ip("netns", "add", self.switch) or self._inside(
            self.switch, "link", "add", "name", "bridge0", "type", "bridge"
        )
        problem = problem or self._inside(self.switch, "link", "set", "bridge0", "up")
        for i, host in enumerate(self.hosts):
            problem = problem or self._plug_in(i, host)
        return problem

    def _inside(self, host, *arguments):
        return ip("-n", host, *arguments)

    def _plug_in(self, i, host):
        port = f"port{i}"
        steps = [
            ("netns", "add", host),
            ("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host),
            ("-n", self.switch, "link", "set", port, "master", "bridge0", "up"),
            ("-n", host, "address", "add", f"{self.address(i)}/24", "dev", "eth0"),
            ("-n", host, "link", "set", "eth0", "up"),
            ("-n", host, "link", "set", "lo", "up"),
        ]
        for step in steps:
            problem = ip(*step)
            if problem:
                return f"ip {' '.join(step)}: {problem}"
        return ""

    def address(self, i):
        return f"10.213.7.{i + 1}"

    def unplug(self, i):
        """Disconnects the host, which keeps running."""
        problem = self._inside(self.switch, "link", "set", f"port{i}", "down")
        assert not problem, problem

    def down(self):
        for host in [*self.hosts, self.switch]:
            ip("netns", "delete", host)

    def start(self, i, *command):
        """A program on host i, whose output is read line by line."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.hosts[i], *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
