# SPDX-License-Identifier: Apache-2.0
"""What a chain of casts and functions does to values: the same as one function and one cast, or
what no layout says.

A value is followed as the dtype that it was rounded to last and the dtype that holds it now. A cast
to a dtype that has all values of the former loses nothing. A chain may lose something once, in its
last cast; then it is that cast.
"""

from collections.abc import Sequence

import torch

from reshard.tracing._types import CONVERTIBLE

# (exponent's range, bits of significand): a dtype has the values of another if it has no less of both.
_FLOATS = {
  torch.float64: (1023, 53),
  torch.float32: (127, 24),
  torch.bfloat16: (127, 8),
  torch.float16: (15, 11),
}
_MAPS = {
  (): "identity",
  ("exp", "neg"): "negated_exp",
  ("add 1",): "plus_one",
  ("sub 1",): "minus_one",
  ("add -1",): "minus_one",
  ("sub -1",): "plus_one",
}
KNOWN_MAPS = "-exp(x), x + 1, x - 1"


def cast(source: torch.dtype, target: torch.dtype) -> str:
  """The operation that a copy from one dtype to another is."""
  if source in _FLOATS and target in _FLOATS:
    return f"to {target}"
  return f"conversion from {source} to {target}"


def _has(wide: torch.dtype, narrow: torch.dtype) -> bool:
  return all(a >= b for a, b in zip(_FLOATS[wide], _FLOATS[narrow], strict=True))


def meaning(
  ops: Sequence[str], source: torch.dtype, target: torch.dtype
) -> tuple[str, bool, str]:
  """(value map, whether bits are seen as another dtype, what is wrong with the chain or "")."""
  functions = tuple(op for op in ops if op != "bits" and not op.startswith("to "))
  bits, casts = "bits" in ops, any(op.startswith("to ") for op in ops)
  if functions not in _MAPS or (functions and bits):
    return "", bits, f"computes {', '.join(functions)}"
  if bits and casts:
    return "", bits, "casts values and sees their bits as another dtype"
  if bits or not ops:
    return "identity", bits, ""
  return _MAPS[functions], False, _why_not_one_cast(ops, source, target)


def _why_not_one_cast(ops: Sequence[str], source: torch.dtype, target: torch.dtype) -> str:
  if source not in _FLOATS:
    return f"computes with {source}"
  rounded = held = source
  names = [str(source).removeprefix("torch.")]
  lost = False
  for op in ops:
    if not op.startswith("to "):
      if op == "neg":
        continue
      if lost or held == torch.float64:
        return f"computes in {str(held).removeprefix('torch.')} what it has cast"
      # A function in float32 is what reshard computes; in a narrower dtype it rounds its result.
      rounded, lost = held, held != torch.float32
      continue
    held = getattr(torch, op.removeprefix("to torch."))
    names.append(op.removeprefix("to torch."))
    if _has(held, rounded):
      continue
    if lost:
      return f"casts {' to '.join(names)}, which rounds twice"
    rounded, lost = held, True
  if lost and rounded != held:
    return f"casts {' to '.join(names)}: a dtype on the way has fewer values than the last"
  if source != target and (source not in CONVERTIBLE or target not in CONVERTIBLE):
    return f"casts {' to '.join(names)}"
  return ""
