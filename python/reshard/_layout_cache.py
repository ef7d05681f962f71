# SPDX-License-Identifier: Apache-2.0
"""Traced layouts on disk: one file for each digest of what they depend on.

A file is a layout's, whose first line also has "kept": the key, how the layout was proved, and a
digest of all else. It is believed if nobody but this user, or root, can have written it, and if it
is whole and has this key; else it is ignored with a warning. Needs neither torch nor an engine, so
that what is kept is found without starting them.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import stat
import tempfile
from typing import Any, NamedTuple

# Raised when traces of the same input may come out differently.
_VERSION = 2
_BEGIN = b'{"kept": '
_MAX_BYTES, _MAX_HEAD = 1 << 30, 1 << 12
_log = logging.getLogger("reshard.tracing")


class CachedLayout(NamedTuple):
  """A layout's text, and of how many of its `of` local tensors the bytes were `proved`."""

  text: str
  proved: int
  of: int


def folder() -> pathlib.Path | None:
  """Where layouts are kept: $RESHARD_CACHE, or "reshard" in $XDG_CACHE_HOME or ~/.cache. None if
  RESHARD_CACHE is "off"."""
  said = os.environ.get("RESHARD_CACHE", "")
  if said == "off":
    return None
  if said:
    return pathlib.Path(said)
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "reshard"


class CacheEntry:
  """The file for a key."""

  def __init__(self, where: pathlib.Path, key: str) -> None:
    self.path, self.key = where / f"layout-{key[:32]}.json", key

  @classmethod
  def of(cls, *depends_on: Any) -> "CacheEntry | None":
    """The entry of all that a layout depends on (anything JSON takes); None if nothing is kept."""
    where = folder()
    if where is None:
      return None
    said = json.dumps([_VERSION, *depends_on], sort_keys=True, default=str)
    return cls(where, hashlib.sha256(said.encode()).hexdigest())

  def read(self) -> CachedLayout | None:
    """None if there is none to believe."""
    try:
      raw = _contents(self.path)
      if raw is None:
        return None
      return self._believed(raw)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
      _log.warning("%s: %s: ignored, and traced anew", self.path, error or type(error).__name__)
      return None

  def _believed(self, raw: bytes) -> CachedLayout:
    first, _, text = raw.partition(b"\n")
    if len(first) > _MAX_HEAD or not first.startswith(_BEGIN) or not first.endswith(b"},"):
      raise ValueError("it is no kept layout")
    head = json.loads(first[len(_BEGIN) : -1])
    text = b"{" + text
    if head.get("key") != self.key:
      raise ValueError("it is kept under another key")
    if head.get("digest") != hashlib.sha256(text).hexdigest():
      raise ValueError("its digest is not that of its content")
    proved, of = head.get("proved"), head.get("of")
    if type(proved) is not int or type(of) is not int or not 0 <= proved <= of:
      raise ValueError("it does not say how it was proved")
    return CachedLayout(text.decode("utf-8"), proved, of)

  def write(self, layout: CachedLayout) -> None:
    """Puts the file there at once, or not at all: a cache that cannot be written is none."""
    content = layout.text.encode("utf-8")
    head = {
      "key": self.key,
      "proved": layout.proved,
      "of": layout.of,
      "digest": hashlib.sha256(content).hexdigest(),
    }
    made = None
    try:
      self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
      with tempfile.NamedTemporaryFile(
        "wb", dir=self.path.parent, prefix=".layout-", delete=False
      ) as file:
        made = file.name
        file.write(_BEGIN + json.dumps(head).encode("utf-8") + b",\n" + content[1:])
      pathlib.Path(made).replace(self.path)
    except OSError:
      if made is not None:
        with contextlib.suppress(OSError):
          pathlib.Path(made).unlink()


def _contents(path: pathlib.Path) -> bytes | None:
  """What a file of this user's own holds; None if there is none.

  Raises OSError, or ValueError for a file that somebody else may have written.
  """
  try:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
  except FileNotFoundError:
    return None
  try:
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
      raise ValueError("it is no regular file")
    if found.st_uid not in (os.geteuid(), 0):
      raise ValueError(f"it belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
      raise ValueError(f"others may write it (mode {stat.S_IMODE(found.st_mode):o})")
    if found.st_size > _MAX_BYTES:
      raise ValueError(f"it has {found.st_size} bytes")
    with open(number, "rb", closefd=False) as file:
      return file.read(_MAX_BYTES + 1)
  finally:
    os.close(number)
