# SPDX-License-Identifier: Apache-2.0
"""Sessions that a call prepares, and later calls with the same arguments use again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from reshard import _core
from reshard._collective import works

__all__ = ["CachedSession", "SessionCache"]


class CachedSession:
  """A session, and the version of its last refit.

  group    of the session, which keeps it alive.
  session  None where there is nothing to move.
  """

  def __init__(self, group: _core.ProcessGroup, session: _core.Session | None = None) -> None:
    self.group = group
    self.session = session
    self._version = 0

  @property
  def alive(self) -> bool:
    """False once it cannot be used again."""
    return not self.group.closed and (self.session is None or not self.session.closed)

  def refit(self, stream: Any = None) -> None:
    """Collective. Moves to the next version; `stream` as for Session.refit()."""
    if self.session is not None:
      self._version += 1
      self.session.refit(self._version, stream=stream)

  def close(self) -> None:
    """Each rank for itself. Idempotent."""
    session, self.session = self.session, None
    if session is not None:
      session.close()


T = TypeVar("T", bound=CachedSession)


class SessionCache(Generic[T]):
  """This rank's cached sessions by key; closes what it drops. One thread at a time.

  limit  of sessions; None: there is none.

  Ranks that use the same keys in the same order hold the same sessions, unless one is dead on some ranks only. So
  users put what all ranks have into the key, or compare what each rank has found.
  """

  def __init__(self, limit: int | None) -> None:
    self._limit = limit
    self._sessions: OrderedDict[Hashable, T] = OrderedDict()

  def __len__(self) -> int:
    return len(self._sessions)

  def find(self, key: Hashable) -> T | None:
    """The session of a key, now the one used last; None if there is none alive."""
    found = self._sessions.get(key)
    if found is None:
      return None
    if not found.alive:
      self.drop(key)
      return None
    self._sessions.move_to_end(key)
    return found

  def keep(self, key: Hashable, made: T) -> T:
    """Takes a session in place of the key's, and drops those used longest ago beyond the limit. Returns it."""
    self.drop(key)
    self._sessions[key] = made
    while self._limit is not None and len(self._sessions) > self._limit:
      self.drop(next(iter(self._sessions)))
    return made

  def drop(self, key: Hashable) -> None:
    """Closes the session of a key, if there is one."""
    found = self._sessions.pop(key, None)
    if found is not None:
      found.close()

  def drop_dead(self) -> None:
    """Closes the sessions that cannot be used again, and those of groups that have ended."""
    dead = [key for key, session in self._sessions.items() if not session.alive or not works(session.group)]
    for key in dead:
      self.drop(key)

  def close(self) -> None:
    """Closes all of them."""
    while self._sessions:
      self.drop(next(iter(self._sessions)))
