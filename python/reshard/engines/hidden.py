# SPDX-License-Identifier: Apache-2.0
"""Keeps the secret of a group out of texts that are shown or logged."""

from __future__ import annotations

import json

__all__ = ["hidden", "without_secret"]

_SHOWN = "***"


def hidden(text: str, secret: str) -> str:
  """The text without the secret, as it is or as JSON writes it."""
  for form in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
    if form:
      text = text.replace(form, _SHOWN)
  return text


def without_secret(error: Exception, secret: str) -> Exception:
  """The error, or a RuntimeError with its text if that or one that it follows shows the secret.

  To be raised outside of the `except` of the error, which it would show otherwise.
  """
  shown: BaseException | None = error
  seen: set[int] = set()
  while shown is not None and id(shown) not in seen:
    seen.add(id(shown))
    text = " ".join([str(shown), repr(shown), *getattr(shown, "__notes__", ())])
    if hidden(text, secret) != text:
      return RuntimeError(f"{type(error).__name__}: {hidden(str(error), secret)}")
    shown = shown.__cause__ or shown.__context__
  return error
