# SPDX-License-Identifier: Apache-2.0
"""The exceptions of reshard: one class for each code of an error."""

import sys
from typing import ClassVar


class Error(Exception):
  """Any error of reshard.

  The message says in one line what was wrong, where, and what would be right. `code` is the name of
  the kind of error, which is also that of the C++ library: catch the subclasses, or compare it.
  """

  __module__ = "reshard"
  code: ClassVar[str] = ""


class InvalidArgumentError(Error, ValueError):
  """The request is wrong: change it."""

  __module__ = "reshard"
  code = "invalid_argument"


class NotFoundError(Error, LookupError):
  """A file, tensor or name does not exist."""

  __module__ = "reshard"
  code = "not_found"


class CorruptError(Error, ValueError):
  """Input violates its format."""

  __module__ = "reshard"
  code = "corrupt"


class UnsupportedError(Error, NotImplementedError):
  """Valid, but not supported by this build or version."""

  __module__ = "reshard"
  code = "unsupported"


class IoError(Error, OSError):
  """The operating system reported an error: disk, permission, memory."""

  __module__ = "reshard"
  code = "io"


class DeadlineError(Error, TimeoutError):
  """The deadline passed."""

  __module__ = "reshard"
  code = "deadline"


class AbortedError(Error, RuntimeError):
  """Another rank failed first, or the caller cancelled."""

  __module__ = "reshard"
  code = "aborted"


#: The class for each code, by the code's name.
BY_CODE: dict[str, type[Error]] = {
  error.code: error
  for error in (
    InvalidArgumentError,
    NotFoundError,
    CorruptError,
    UnsupportedError,
    IoError,
    DeadlineError,
    AbortedError,
  )
}


def add_note(error: BaseException, text: str) -> None:
  """Adds a line below an error's message, as its add_note() of Python 3.11 does; 3.10 keeps it and shows nothing."""
  if sys.version_info >= (3, 11):
    error.add_note(text)
  else:
    error.__dict__["__notes__"] = [*getattr(error, "__notes__", ()), text]
