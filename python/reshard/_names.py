# SPDX-License-Identifier: Apache-2.0
"""Names of parameters as those of a model's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from reshard import _core
from reshard._errors import InvalidArgumentError

Names = Callable[[str], str | None] | Mapping[str, str | None] | None


def renamed(names: Names) -> Callable[[str], str | None]:
  """A function from the name of a parameter to that of a tensor; None: the parameter is left out.

  names  None: the name without the parts that torch.compile, activation checkpointing, FSDP1, DDP and PEFT
         add (of a module that PEFT trains in a copy, the copy's); a function; or a dict of patterns: "*" matches any run of characters, "#" a run of digits,
         and "$1" to "$9" in the value are what they matched. The first that matches counts; a name
         that none matches stays.
  """
  if names is None:
    return _plain()
  if callable(names):
    return names
  if not isinstance(names, Mapping):
    raise InvalidArgumentError(f"names: a function or a dict, not {type(names).__name__}")
  plain = _plain()
  rules = [(re.compile(_pattern(match)), name) for match, name in names.items()]

  def find(name: str) -> str | None:
    for pattern, to in rules:
      found = pattern.fullmatch(name)
      if found is not None:
        return None if to is None else _filled(to, found)
    return plain(name)

  return find


def matches(pattern: str) -> Callable[[str], bool]:
  """Whether a name matches a pattern, with "*" and "#" as above."""
  found = re.compile(_pattern(pattern))
  return lambda name: found.fullmatch(name) is not None


def listed(names: Sequence[str]) -> str:
  """The first five, for messages."""
  more = f" and {len(names) - 5} more" if len(names) > 5 else ""
  return ", ".join(f"'{name}'" for name in names[:5]) + more


def _plain() -> Callable[[str], str | None]:
  """The names without what wrappers add."""
  copies: dict[str, str] = {}

  def find(name: str) -> str | None:
    role, whole, adapter = _core.parameter_name(name)
    if role == "original":
      return None
    if role != "whole":
      return _core.without_wrappers(name)
    if adapter and copies.setdefault(whole, adapter) != adapter:
      raise InvalidArgumentError(
        f"'{whole}' is in the copies of two adapters, '{copies[whole]}' and '{adapter}': leave one out with names="
      )
    return whole

  return find


def _pattern(match: str) -> str:
  parts = {"*": "(.*?)", "#": "(?<![0-9])([0-9]+)(?![0-9])"}
  return "".join(parts.get(character, re.escape(character)) for character in match)


def _filled(to: str, found: re.Match[str]) -> str:
  def wildcard(number: re.Match[str]) -> str:
    at = int(number.group(1))
    if at > len(found.groups()):
      raise InvalidArgumentError(f"names: '{to}' uses ${at}, but its pattern has no such wildcard")
    return found.group(at)

  return re.sub(r"\$([1-9])", wildcard, to)
