#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of the Python package from its docstrings, as HTML: a page for each module.

    build/venv/bin/python tools/python_docs.py <folder>

Docstrings are shown as they are written: their columns carry meaning. A name that is documented
somewhere is a link to there. Tools that render docstrings as Markdown lose the columns, and know
neither the signatures nor the properties of an extension made with nanobind.
"""

import enum
import html
import importlib
import inspect
import pathlib
import re
import sys
from typing import Any

MODULES = (
  "reshard",
  "reshard.tracing",
  "reshard.tracing.transformers",
  "reshard.tracing.vllm",
  "reshard.hf",
  "reshard.dtensor",
  "reshard.lora",
  "reshard.vllm",
)

STYLE = """
body { font: 16px/1.45 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222; }
pre, code { font: 14px/1.45 monospace; }
pre { white-space: pre-wrap; margin: .3em 0 1em 1.5em; }
.signature { background: #f3f5f8; padding: .3em .6em; margin: 0; overflow-wrap: anywhere; }
.member { margin-left: 1.5em; }
a { color: #0b5394; text-decoration: none; }
h2 { margin-top: 2em; }
td { vertical-align: top; padding: .1em 1em .1em 0; }
"""


def public(thing: Any) -> list[str]:
  """The public names of a module, or of a class and its public bases, in the order of its source."""
  if inspect.ismodule(thing):
    return list(thing.__all__)
  names: dict[str, None] = {}
  for base in thing.__mro__:
    if (base.__module__ or "").partition(".")[0] == "reshard":
      names |= dict.fromkeys(name for name in vars(base) if not name.startswith("_"))
  return list(names)


class Written(str):
  """An annotation as the source has it."""

  __repr__ = str.__str__


def python_signature(function: Any) -> str:

  def written(annotation: Any) -> Any:
    return Written(annotation) if isinstance(annotation, str) else annotation

  signature = inspect.signature(function)
  parameters = [p.replace(annotation=written(p.annotation)) for p in signature.parameters.values()]
  signature = signature.replace(parameters=parameters, return_annotation=written(signature.return_annotation))
  return f"{function.__name__}{signature}"


def overloads(function: Any) -> list[tuple[str, str]]:
  """Signatures and docstrings of a function: of the extension, or of Python."""
  function = getattr(function, "__func__", function)
  out = []
  for signature, text, defaults in getattr(function, "__nb_signature__", ()):
    shown = signature
    for i, value in reversed(list(enumerate(defaults or ()))):
      shown = shown.replace(f"\\{i}", repr(value))
    out.append((shown.removeprefix("def "), inspect.cleandoc(text or "")))
  if not out and inspect.isfunction(function):
    out.append((python_signature(function), inspect.getdoc(function) or ""))
  return out


def text_of(thing: Any) -> str:
  """The docstring of a public thing without signatures; empty if it has none of its own."""
  if isinstance(thing, property):
    text = inspect.cleandoc(thing.__doc__ or "")
    return "" if re.match(r"\(self\) -> .*\Z", text) else text  # as nanobind makes it
  if inspect.isclass(thing) or inspect.ismodule(thing):
    return inspect.cleandoc(thing.__doc__ or "")
  if callable(thing) or hasattr(thing, "__func__"):
    return "\n\n".join(text for _, text in overloads(thing) if text)
  return ""


class Reference:
  """All public names, with the page and anchor of each."""

  def __init__(self, modules: tuple[str, ...]) -> None:
    self.modules: dict[str, Any] = {}
    for name in modules:
      try:
        self.modules[name] = importlib.import_module(name)
      except ModuleNotFoundError as error:  # of a framework
        if (error.name or "reshard").partition(".")[0] == "reshard":
          raise
        print(f"{name} is left out: {error.name} is not installed", file=sys.stderr)
    self.places: dict[str, str] = {}
    for name, module in self.modules.items():
      for member in public(module):
        self.places.setdefault(member, f"{name}.html#{name}.{member}")

  def linked(self, text: str) -> str:
    """Escaped, with links at the names of classes, and of functions where they are called."""

    def link(match: re.Match[str]) -> str:
      place = self.places.get(match[2])
      called = match[3] == "(" or match[2][0].isupper()
      return f'{match[1]}<a href="{place}">{match[2]}</a>{match[3]}' if place and called else match[0]

    text = text.replace("reshard._core.", "").replace("collections.abc.", "").replace("typing.", "")
    return re.sub(r"((?:\breshard\.)?)(?<![\w.])(\w+)(\(?)", link, html.escape(text, quote=False))

  def signature(self, text: str) -> str:
    return f'<pre class="signature">{self.linked(text)}</pre>'

  def function(self, thing: Any) -> str:
    return "".join(f"{self.signature(how)}<pre>{self.linked(text)}</pre>" for how, text in overloads(thing))

  def member(self, where: str, name: str, thing: Any) -> str:
    if isinstance(thing, property):
      returns = ""
      if thing.fget is not None:
        signature = overloads(thing.fget)
        returns = signature[0][0].partition(" -> ")[2] if signature else ""
      shown = f"{name}: {returns}" if returns else name
      body = f"{self.signature(shown)}<pre>{self.linked(text_of(thing))}</pre>"
    elif callable(thing) or hasattr(thing, "__func__"):
      body = self.function(thing)
    else:
      body = f"{self.signature(f'{name} = {thing!r}')}<pre></pre>"
    return f'<div class="member" id="{where}.{name}">{body}</div>\n'

  def klass(self, where: str, thing: type) -> str:
    unmade = issubclass(thing, enum.Enum | Exception) or getattr(thing, "_is_protocol", False)
    made = [] if unmade else overloads(vars(thing).get("__init__"))
    out = [self.signature(re.sub(r"^__init__\(self(, )?", f"{thing.__name__}(", how).removesuffix(" -> None")) for how, _ in made]
    out.append(f"<pre>{self.linked(text_of(thing))}</pre>")
    if issubclass(thing, enum.Enum):
      names = ", ".join(member.name for member in thing)
      out.append(f"<pre>{html.escape(names)}</pre>")
    for name in public(thing):
      value = inspect.getattr_static(thing, name)
      if not isinstance(value, enum.Enum):
        out.append(self.member(where, name, value))
    return "".join(out)

  def page(self, name: str) -> str:
    module = self.modules[name]
    rows, parts = [], []
    for member in public(module):
      thing, where = getattr(module, member), f"{name}.{member}"
      first = text_of(thing).partition("\n\n")[0]
      rows.append(f'<tr><td><a href="#{where}"><code>{member}</code></a></td><td>{html.escape(first)}</td></tr>')
      body = self.klass(where, thing) if inspect.isclass(thing) else self.function(thing)
      parts.append(f'<h2 id="{where}">{member}</h2>\n{body}\n')
    table = f"<table>{''.join(rows)}</table>"
    return self.whole(name, f"<pre>{self.linked(text_of(module))}</pre>{table}{''.join(parts)}")

  def index(self) -> str:
    rows = "".join(
      f'<tr><td><a href="{name}.html"><code>{name}</code></a></td><td>{html.escape(text_of(m).partition(chr(10))[0])}</td></tr>'
      for name, m in self.modules.items()
    )
    return self.whole("reshard in Python", f"<table>{rows}</table>")

  def whole(self, title: str, body: str) -> str:
    version = self.modules["reshard"].__version__
    return (
      f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>\n'
      f'<p><a href="index.html">reshard {version}</a></p><h1>{title}</h1>\n{body}</html>\n'
    )

  def write(self, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in self.modules:
      (folder / f"{name}.html").write_text(self.page(name))
    (folder / "index.html").write_text(self.index())


if __name__ == "__main__":
  if len(sys.argv) != 2:
    raise SystemExit(__doc__)
  Reference(MODULES).write(pathlib.Path(sys.argv[1]))
  print(f"{sys.argv[1]}/index.html")
