# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the arguments of a call, in one line with the argument's name."""

from __future__ import annotations

import ast
import collections.abc
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from reshard import _core

_MOST_TEXT = 400
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Parameter(NamedTuple):
  name: str
  wanted: ast.expr | None  # its annotation
  required: bool
  kind: str  # "positional", "keyword", "args" or "kwargs"


def explain(function: Any, given: Sequence[Any], named: Mapping[str, Any]) -> str:
  """Why a function of the extension refuses arguments: one line."""
  found: list[str | None] = []
  takes = []
  arguments = list(given)
  for signature, *_ in function.__nb_signature__:
    parameters = _parsed(signature)
    is_method = bool(parameters) and parameters[0].name == "self"
    arguments = list(given)[is_method:]
    found.append(_why(parameters[is_method:], arguments, named))
    takes.append(f"({', '.join(map(_spelled, parameters[is_method:]))})")
  why = found[-1] if all(found) else None
  if why is None:
    kinds = [*(_kind(x) for x in arguments), *(f"{n}={_kind(x)}" for n, x in named.items())]
    why = f"an argument has a wrong type: ({', '.join(kinds)}); it takes {' or '.join(takes)}"
  return f"{_name_of(function)}(): {why}"[:_MOST_TEXT]


def checked(function: _Function) -> _Function:
  """The same function, which raises TypeError for an argument that its annotation does not allow."""
  signature = inspect.signature(function)
  name = re.sub(r"\.__init__$", "", function.__qualname__)
  wanted = {
    parameter.name: ast.parse(parameter.annotation, mode="eval").body
    for parameter in signature.parameters.values()
    if isinstance(parameter.annotation, str)
  }

  @functools.wraps(function)
  def call(*given: Any, **named: Any) -> Any:
    for parameter, value in signature.bind(*given, **named).arguments.items():
      if parameter in wanted and not _fits(value, wanted[parameter]):
        raise TypeError(f"{name}(): {_mismatch(parameter, value, wanted[parameter])}"[:_MOST_TEXT])
    return function(*given, **named)

  return call  # type: ignore[return-value]


def _name_of(function: Any) -> str:
  return re.sub(r"\.__(init|new)__$", "", str(function.__qualname__))


def _parsed(signature: str) -> list[_Parameter]:
  """The parameters of "def f(self, x: int = \\0) -> str", in which \\0 is a default value."""
  text = re.sub(r"\\\d+", "...", signature.strip().removesuffix(":").removesuffix("..."))
  arguments = ast.parse(f"{text}: ...").body[0].args  # type: ignore[attr-defined]
  out = []
  positional = [*arguments.posonlyargs, *arguments.args]
  first_default = len(positional) - len(arguments.defaults)
  for i, one in enumerate(positional):
    out.append(_Parameter(one.arg, one.annotation, i < first_default, "positional"))
  if arguments.vararg is not None:
    out.append(_Parameter(arguments.vararg.arg, None, False, "args"))
  for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
    out.append(_Parameter(one.arg, one.annotation, default is None, "keyword"))
  if arguments.kwarg is not None:
    out.append(_Parameter(arguments.kwarg.arg, None, False, "kwargs"))
  return out


def _why(parameters: Sequence[_Parameter], given: Sequence[Any], named: Mapping[str, Any]) -> str | None:
  """None if nothing is seen to be wrong."""
  by_place = [p for p in parameters if p.kind == "positional"]
  known = {p.name: p for p in parameters if p.kind in ("positional", "keyword")}
  kinds = {p.kind for p in parameters}
  if len(given) > len(by_place) and "args" not in kinds:
    most = f"{len(by_place)} argument{'' if len(by_place) == 1 else 's'} without a name"
    return f"takes at most {most}, not {len(given)}"
  values = {p.name: value for p, value in zip(by_place, given, strict=False)}
  for name, value in named.items():
    if name in values:
      return f"the argument '{name}' is given twice"
    if name in known:
      values[name] = value
    elif "kwargs" not in kinds:
      close = difflib.get_close_matches(name, known, 1)
      return f"has no argument '{name}'" + (f"; did you mean '{close[0]}'?" if close else "")
  for name, parameter in known.items():
    if name not in values and parameter.required:
      return f"needs the argument '{name}'"
    wanted = parameter.wanted
    if name in values and wanted is not None and not _fits(values[name], wanted):
      return _mismatch(name, values[name], wanted)
  return None


def _mismatch(name: str, value: Any, wanted: ast.expr) -> str:
  if isinstance(value, int) and not isinstance(value, bool) and _takes(wanted, int):
    return f"{name} is {_short(value)}, which does not fit 64 bits"
  if isinstance(value, str) and _takes(wanted, str):
    return f"{name} is no valid Unicode: {_short(value)}"
  inside = next((k for k in _inside(value) if not _fits_inside(k, wanted)), None)
  what = f"{_kind(value)} with {_kind(inside)} in it" if inside is not None else _kind(value)
  return f"{name} must be {_text(wanted)}, not {what}"


def _short(value: Any) -> str:
  text = ascii(value)
  return text if len(text) <= 40 else text[:37] + "..."


def _kind(value: Any) -> str:
  if value is None:
    return "None"
  kind = type(value)
  return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _spelled(parameter: _Parameter) -> str:
  return parameter.name + ("" if parameter.wanted is None else f": {_text(parameter.wanted)}")


def _text(wanted: ast.expr) -> str:
  text = re.sub(r"\b(collections\.abc|typing|reshard\._core|_core|reshard)\.", "", ast.unparse(wanted))
  return text.replace("os.PathLike[str]", "a path").replace(" | ", " or ")


def _last(wanted: ast.expr) -> str:
  return wanted.attr if isinstance(wanted, ast.Attribute) else wanted.id if isinstance(wanted, ast.Name) else ""


def _takes(wanted: ast.expr, kind: type) -> bool:
  """True if a value of the type itself is wanted."""
  if isinstance(wanted, ast.BinOp):
    return _takes(wanted.left, kind) or _takes(wanted.right, kind)
  return _last(wanted) == kind.__name__


def _inside(value: Any) -> list[Any]:
  if isinstance(value, Mapping):
    return [*value.keys(), *value.values()]
  return list(value) if isinstance(value, (list, tuple, set, frozenset)) else []


def _fits_inside(value: Any, wanted: ast.expr) -> bool:
  if isinstance(wanted, ast.BinOp):
    return _fits_inside(value, wanted.left) or _fits_inside(value, wanted.right)
  if not isinstance(wanted, ast.Subscript):
    return _last(wanted) not in ("str", "int", "float", "bool", "bytes", "None")
  parts = wanted.slice.elts if isinstance(wanted.slice, ast.Tuple) else [wanted.slice]
  return any(_fits(value, part) for part in parts)


def _is_int(value: Any) -> bool:
  if isinstance(value, bool):
    return False
  if not isinstance(value, int):
    return hasattr(value, "__index__")
  return -(1 << 63) <= value < 1 << 64


def _is_unicode(value: Any) -> bool:
  return isinstance(value, str) and not any(0xD800 <= ord(c) < 0xE000 for c in value)


_MODULES = {"_core", "reshard", "reshard._core", "collections.abc", "typing", "os"}
_PLAIN: dict[str, Callable[[Any], bool]] = {
  "int": _is_int,
  "float": lambda x: isinstance(x, float) or hasattr(x, "__float__") or _is_int(x),
  "bool": lambda x: isinstance(x, bool),
  "str": _is_unicode,
  "bytes": lambda x: isinstance(x, bytes),
  "dict": lambda x: isinstance(x, dict),
  "list": lambda x: isinstance(x, (list, tuple)),
  "tuple": lambda x: isinstance(x, (list, tuple)),
  "PathLike": lambda x: hasattr(x, "__fspath__"),
  "Callable": callable,
}


def _fits(value: Any, wanted: ast.expr) -> bool:
  """False if an annotation certainly does not allow the value."""
  if isinstance(wanted, ast.BinOp):
    return _fits(value, wanted.left) or _fits(value, wanted.right)
  if isinstance(wanted, ast.Constant):
    return value is None if wanted.value is None else True
  if not isinstance(wanted, ast.Subscript):
    return _is_foreign(wanted) or _fits_plain(value, _last(wanted))
  if _is_foreign(wanted.value):
    return True
  kind = _last(wanted.value)
  if kind == "Literal":
    return isinstance(value, str)
  if not _fits_plain(value, kind) or kind in ("Callable", "PathLike"):
    return _fits_plain(value, kind)
  parts = wanted.slice.elts if isinstance(wanted.slice, ast.Tuple) else [wanted.slice]
  if isinstance(value, Mapping):
    both = len(parts) == 2
    return all(_fits(k, parts[0]) for k in value) and (not both or all(_fits(v, parts[1]) for v in value.values()))
  if isinstance(value, tuple) and kind == "tuple" and not any(_is_dots(part) for part in parts):
    return len(value) == len(parts) and all(map(_fits, value, parts))
  return all(_fits(inside, parts[0]) for inside in _inside(value))


def _is_foreign(wanted: ast.expr) -> bool:
  """True for a class of a module that is not looked into here, such as torch.Tensor."""
  return isinstance(wanted, ast.Attribute) and ast.unparse(wanted.value) not in _MODULES


def _is_dots(part: ast.expr) -> bool:
  return isinstance(part, ast.Constant) and part.value is Ellipsis


def _fits_plain(value: Any, name: str) -> bool:
  if name in _PLAIN:
    return _PLAIN[name](value)
  kind = getattr(_core, name, None) or getattr(collections.abc, name, None)
  return isinstance(value, kind) if isinstance(kind, type) else True
