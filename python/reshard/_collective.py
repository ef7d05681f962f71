# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other: JSON, compressed. Nothing is executed to read it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

from reshard import _core, _errors

#: The most bytes that may be unpacked to.
MAX_BYTES = 1 << 30


def pack(value: Any) -> bytes:
  """JSON, compressed."""
  return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), level=1)


def unpack(data: bytes) -> Any:
  """What `pack()` was given. Errors: ValueError."""
  stream = zlib.decompressobj()
  text = stream.decompress(data, MAX_BYTES)
  if stream.unconsumed_tail:
    raise ValueError(f"a message of more than {MAX_BYTES} bytes")
  return json.loads(text)


def gathered(group: Any, step: Callable[[], Any], what: str, timeout: float) -> list[Any]:
  """What step() returned on each rank, by rank; anything that JSON takes. Collective.

  group    a reshard.ProcessGroup, or a process group of torch.distributed (None: the default one)
  what     names the call in errors
  timeout  seconds until DeadlineError, of a reshard.ProcessGroup; torch has its own

  An exception of one rank is raised there as it is. All others raise one that names the rank: of the
  same class if that is one of reshard, IoError for an OSError, AbortedError for what ends a process
  (Ctrl-C, SystemExit), else InvalidArgumentError. What ends a process also ends a reshard.ProcessGroup:
  nothing is waited for.
  """
  failed: BaseException | None = None
  try:
    said: dict[str, Any] = {"is": step()}
  except BaseException as error:
    failed = error
    said = {"error": _class_of(error), "message": str(error) or repr(error)}
    if not isinstance(error, Exception) and isinstance(group, _core.ProcessGroup):
      group.abort(f"{what}: {error!r}")
      raise
  answers = [unpack(data) for data in _all_gather(group, pack(said), timeout)]
  if failed is not None:
    raise failed
  for rank, answer in enumerate(answers):
    if "error" in answer:
      kind = _CLASSES.get(str(answer["error"]), _errors.InvalidArgumentError)
      raise kind(f"{what}: rank {rank}: {answer['message']}")
  return [answer["is"] for answer in answers]


def works(group: _core.ProcessGroup) -> bool:
  """False once the group has ended: closed, aborted, or a rank has died. Not collective."""
  if group.closed:
    return False
  try:
    group.status()
  except _errors.Error:
    return False
  return True


_CLASSES: dict[str, type[_errors.Error]] = {
  name: thing
  for name, thing in vars(_errors).items()
  if isinstance(thing, type) and issubclass(thing, _errors.Error)
}


def _class_of(error: BaseException) -> str:
  if not isinstance(error, Exception):
    return _errors.AbortedError.__name__
  if isinstance(error, OSError) and not isinstance(error, _errors.Error):
    return _errors.IoError.__name__
  return type(error).__name__


def _all_gather(group: Any, mine: bytes, timeout: float) -> list[bytes]:
  if isinstance(group, _core.ProcessGroup):
    return list(group.all_gather(mine, timeout=timeout))
  import torch.distributed as dist

  size = dist.get_world_size(group)
  if size < 1:
    raise _errors.InvalidArgumentError("this process does not belong to the process group")
  said: list[Any] = [None] * size
  dist.all_gather_object(said, mine, group=group)
  return said
