# SPDX-License-Identifier: Apache-2.0
"""The server of a fleet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from reshard import _core
from reshard._arguments import checked

if TYPE_CHECKING:
  from types import TracebackType

  from typing_extensions import Self  # of typing from Python 3.11 on

__all__ = ["Server", "serve"]


class Server:
  """Serves a fleet from a thread of this process, until close() or the end of the process."""

  def __init__(self, server: _core.FleetServer) -> None:
    self._server: _core.FleetServer | None = server
    self.url = server.url

  def text(self) -> str:
    """Units, members, the epoch and the round in progress, for people."""
    return "" if self._server is None else self._server.text()

  def close(self) -> None:
    """Ends the service; members keep what they hold. Idempotent."""
    self._server = None

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
    self.close()


@checked
def serve(
  url: str,
  *,
  job: str = "fleet",
  secret: str | None = None,
  secret_file: str | os.PathLike[str] | None = None,
  timeout: float = 60.0,
  report: float = 3.0,
) -> Server:
  """Serves a fleet at an address.

  url      "tcp://HOST:PORT" (port 0: any free one; needs a secret) or "file:///FOLDER"
  job      the name of the fleet, at most 32 letters, digits, "-", "_", "."
  secret, secret_file  as for reshard.join(); not both
  timeout  seconds that a trainer's refit() waits for engines that do not receive; after three times
           that, members that take part in a refit of which nobody reports the end are dropped
  report   seconds from the first report of a round until those that have not reported are dropped

  Raises InvalidArgumentError for an address that is none, IoError for one that cannot be used.
  """
  return Server(
    _core.FleetServer(url, job=job, secret=secret, secret_file=secret_file, gather=timeout, round=3 * timeout, report=report)
  )
