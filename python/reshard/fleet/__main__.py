# SPDX-License-Identifier: Apache-2.0
"""Serves a fleet until it is interrupted: `python -m reshard.fleet tcp://HOST:PORT --secret-file FILE`."""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys

from reshard._errors import Error
from reshard.fleet.server import serve


def main(arguments: list[str]) -> int:
  """The exit code: 0 after an interrupt or SIGTERM, 1 if it cannot serve."""
  parser = argparse.ArgumentParser(prog="python -m reshard.fleet", description="Serves a fleet until it is interrupted.")
  parser.add_argument("url", help='"tcp://HOST:PORT", which needs a secret (port 0: any free one), or "file:///FOLDER"')
  parser.add_argument("--job", default="fleet", help="the name of the fleet")
  parser.add_argument("--secret-file", type=pathlib.Path, help="its first line is the secret; only its owner may read it")
  parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a refit waits for engines that do not receive")
  parser.add_argument("--report", type=float, default=3.0, help="seconds from the first report of a round to the last")
  chosen = parser.parse_args(arguments)
  ends = {signal.SIGINT, signal.SIGTERM}
  signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # Also in the thread that serves.
  try:
    server = serve(
      chosen.url, job=chosen.job, secret_file=chosen.secret_file, timeout=chosen.timeout, report=chosen.report
    )
  except Error as error:
    print(f"reshard.fleet: {error}", file=sys.stderr)
    return 1
  with server:
    print(f"serves fleet {chosen.job} at {server.url}", flush=True)
    signal.sigwait(ends)
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
