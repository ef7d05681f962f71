# SPDX-License-Identifier: Apache-2.0
"""Where each type of C++ sources is defined, by its qualified name: two definitions of one name in one program are
undefined behaviour that no linker reports."""

import re

_NOISE = re.compile(
  r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
  r"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
  re.DOTALL | re.MULTILINE,
)
_SCOPE = re.compile(
  r"\bnamespace(?P<space>\s+[\w:]+)?\s*\{"
  r"|\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[\w+\]\]\s*|alignas\([^)]*\)\s*)?"
  r"(?P<type>[A-Za-z_]\w*)\s*(?:final\s*)?(?::(?!:)[^;{}()]*)?\{"
  r"|[{}]"
)


def types_in(text):
  """(qualified name, line) of each type of a source that other files could define, too: none in an unnamed namespace or
  in a function."""
  clean = _NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
  scopes = []  # a name, or None for what nobody outside can name
  for found in _SCOPE.finditer(clean):
    if found.group() == "}":
      if scopes:
        scopes.pop()
    elif found["type"]:
      if None not in scopes:
        yield "::".join([*scopes, found["type"]]), clean.count("\n", 0, found.start("type")) + 1
      scopes.append(found["type"])
    else:
      scopes.append(found["space"].strip() if found["space"] else None)


def defined_twice(sources):
  """sources: path -> text. Yields (path, line, name, path of the first definition)."""
  first = {}
  for path, text in sources.items():
    for name, line in types_in(text):
      if first.setdefault(name, path) != path:
        yield path, line, name, first[name]
