# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces on a switch whose links have a limited rate.

Needs root, `ip netns` and `tc`. Removes everything it created when it ends.
"""

import contextlib
import os
import shutil
import subprocess

NETWORK = "10.83.0"
INTERFACE = "link0"


def why_not():
  """Why no hosts can be created here; empty if they can."""
  for tool in ("ip", "tc", "unshare"):
    if shutil.which(tool) is None:
      return f"there is no {tool}"
  if os.geteuid() != 0:
    return "network namespaces need root"
  name = f"reshard-probe-{os.getpid()}"
  made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
  subprocess.run(["ip", "netns", "del", name], capture_output=True)
  return "" if made.returncode == 0 else f"no network namespaces: {made.stderr.strip()}"


def ip(*words):
  subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
  """Names, addresses, and the words that run a command on a host."""

  def __init__(self, count):
    self.prefix = f"reshard{os.getpid()}"
    self.count = count
    self.switch = f"{self.prefix}-switch"

  def name(self, host):
    return f"{self.prefix}-h{host}"

  def address(self, host):
    return f"{NETWORK}.{host + 1}"

  def command(self, host):
    """To be put before a command: runs it there, under a host name of its own."""
    return [
      "ip", "netns", "exec", self.name(host), "unshare", "--uts", "sh", "-c",
      f'hostname {self.name(host)}; exec "$@"', "sh",
    ]  # fmt: skip

  def make(self, rate, burst):
    ip("netns", "add", self.switch)
    ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
    ip("-n", self.switch, "link", "set", "bridge0", "up")
    for host in range(self.count):
      name, port = self.name(host), f"port{host}"
      ip("netns", "add", name)
      ip("link", "add", INTERFACE, "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch)
      ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
      ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", INTERFACE)
      ip("-n", name, "link", "set", INTERFACE, "up")
      ip("-n", name, "link", "set", "lo", "up")
      for namespace, device in ((name, INTERFACE), (self.switch, port)):
        limit = ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate]
        limit += ["burst", burst, "limit", "4mb"]
        ip("netns", "exec", namespace, *limit)

  def remove(self):
    for name in [self.switch, *map(self.name, range(self.count))]:
      subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextlib.contextmanager
def hosts(count, rate="1gbit", burst="256kb"):
  """Hosts 0 to count - 1, each with one link of this rate in both directions."""
  made = Hosts(count)
  try:
    made.make(rate, burst)
    yield made
  finally:
    made.remove()
