# SPDX-License-Identifier: Apache-2.0
"""Signatures and types of an extension made with nanobind, which Sphinx does not know to read."""

import enum
import re
from typing import Any


def _of(function: Any) -> str:
  """The first signature of a function of nanobind, with its defaults; "" for other functions."""
  function = getattr(function, "__func__", function)
  for signature, _, defaults in getattr(function, "__nb_signature__", ()):
    for i, value in reversed(list(enumerate(defaults or ()))):
      signature = signature.replace(f"\\{i}", repr(value))
    return str(signature).replace("reshard._core.", "").replace("collections.abc.", "")
  return ""


def signature_of(cls: type) -> tuple[str, str] | None:
  """(parameters, "") of a class's constructor; None: Sphinx finds them."""
  if issubclass(cls, enum.Enum | BaseException):
    return None
  said = _of(vars(cls).get("__init__"))
  found = re.fullmatch(r"def __init__\(self(?:, )?(.*)\) -> None", said)
  return None if found is None else (f"({found[1]})", "")


def property_type(thing: Any) -> str:
  """The type of a property of nanobind; "" for others."""
  return _of(getattr(thing, "fget", None)).partition(" -> ")[2]
