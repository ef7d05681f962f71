# SPDX-License-Identifier: Apache-2.0
"""Events of the library in Python's logging, as the loggers reshard.ROOM below the logger reshard.

Until somebody gives the logger reshard a handler or a level, events are lines on standard error. From then on a thread
reads them from a socket and hands them to logging, so that no thread of the library ever waits for the GIL. Whatever
cannot be sent, and events of a process that is ending, are lines on standard error.
"""

import logging
import os
import socket
import threading
import traceback
from typing import Any

from reshard import _core

_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_AT_FIRST = _core._log_level()
_LONGEST = 1 << 20  # of a packet


class _Receiver:
  """The thread that hands events to logging."""

  def __init__(self) -> None:
    self._reads, self._writes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    self._thread = threading.Thread(target=self._run, name="reshard-log", daemon=True)
    self._thread.start()
    _core._log_to(self._writes.fileno())

  def _run(self) -> None:
    while packet := self._reads.recv(_LONGEST):
      try:
        _hand_over(packet.decode(errors="replace"))
      except Exception:  # of a filter; handlers print their own
        traceback.print_exc()

  def stop(self, seconds: float) -> None:
    """Hands over what was sent. The sockets stay open: another thread may be about to send."""
    _core._log_to(None)
    self._writes.shutdown(socket.SHUT_WR)
    self._thread.join(seconds)


_receiver: _Receiver | None = None
_start = threading.Lock()


class _Logger(logging.Logger):
  """The logger reshard: events come to it once it has a handler or a level."""

  def setLevel(self, level: int | str) -> None:
    super().setLevel(level)
    _follow(self)

  def addHandler(self, hdlr: logging.Handler) -> None:
    super().addHandler(hdlr)
    _follow(self)


def _is_asked(logger: logging.Logger) -> bool:
  return logger.level != logging.NOTSET or any(not isinstance(h, logging.NullHandler) for h in logger.handlers)


def _follow(logger: logging.Logger) -> None:
  """Makes the library log what the logger wants."""
  global _receiver
  level = next((word for word, number in _LEVELS.items() if logger.level >= number), "debug")
  _core._set_log_level(_AT_FIRST if logger.level == logging.NOTSET else level)
  with _start:
    if _receiver is None and _is_asked(logger):
      _receiver = _Receiver()


def _hand_over(packet: str) -> None:
  level, room, rank, microseconds, message = packet.split("\n", 4)
  logger = logging.getLogger(f"reshard.{room}")
  if not logger.isEnabledFor(_LEVELS[level]):
    return
  text = f"rank {rank}: {message}" if rank else message
  extra: dict[str, Any] = {"room": room, "rank": int(rank) if rank else None}
  record = logger.makeRecord(logger.name, _LEVELS[level], "(reshard)", 0, text, (), None, extra=extra)
  record.created = int(microseconds) / 1e6
  record.msecs = int(microseconds) // 1000 % 1000
  logger.handle(record)


def end() -> None:
  """Hands over what was logged so far; later events are lines on standard error."""
  global _receiver
  receiver, _receiver = _receiver, None
  if receiver is not None:
    receiver.stop(2)


def _in_child() -> None:
  """A forked process has the logger, and not the thread."""
  global _receiver, _start
  _start = threading.Lock()
  was, _receiver = _receiver, None
  if was is not None:
    _core._log_to(None)
    _follow(logger)


def _own_logger() -> logging.Logger:
  """logging.getLogger("reshard"), which somebody may have configured before."""
  found = logging.getLogger("reshard")
  if type(found) is logging.Logger:
    found.__class__ = _Logger
    if _is_asked(found):
      _follow(found)
  return found


logger = _own_logger()
os.register_at_fork(after_in_child=_in_child)
