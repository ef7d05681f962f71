#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks names and comments against docs/style.md: the words of its table that are marked ✓, and how comments begin.

  tools/check_words.py [root]     prints "file:line: what is wrong" for each, and fails if there is any

A row of the table "Say, do not say" whose second cell begins with ✓ forbids each name in backticks there, in code and in
comments; a name that ends in "..." forbids all names that begin so. The comment of a declaration (///) begins neither
with Of, By, Where nor What.
"""

import pathlib
import re
import sys

from check_layers import FOLDERS, SOURCES

# They name what they forbid.
OWN = ("tools/check_words.py", "tools/check_words_test.py")
ROW = re.compile(r"^\| *(?P<say>.*?) *\| *✓ *(?P<not>.*?) *\|.*\|$", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_]\w*")
DOC = re.compile(r"\s*///\s")
BEGINS = re.compile(r"\s*///\s+(Of|By|Where|What)\b")


def forbidden(style):
  """{name: what to say instead} of the table; a name that ends in "..." stands for all that begin so."""
  found = {}
  for row in ROW.finditer(style):
    for name in re.findall(r"`([\w.]+)(?:\(\))?`", row["not"]):
      found[name] = row["say"]
  return found


def check_text(text, words):
  """Yields (line, what is wrong) for one file."""
  whole = {name: say for name, say in words.items() if not name.endswith("...")}
  begins = {name[:-3]: say for name, say in words.items() if name.endswith("...")}
  above = ""
  for number, line in enumerate(text.splitlines(), 1):
    for name in NAME.findall(line):
      say = whole.get(name) or next((s for begin, s in begins.items() if name.startswith(begin)), None)
      if say:
        yield number, f"{name}: say {say} (docs/style.md)"
    if (begin := BEGINS.match(line)) and not DOC.match(above):
      yield number, f'a comment of a declaration does not begin with "{begin[1]}"; begin with a noun or a verb'
    above = line


def check_tree(root):
  words = forbidden((root / "docs" / "style.md").read_text(encoding="utf-8"))
  found = []
  for file in (p for top in FOLDERS for p in sorted((root / top).rglob("*"))):
    path = file.relative_to(root).as_posix()
    if file.suffix in SOURCES | {".py"} and file.is_file() and path not in OWN:
      found += [f"{path}:{n}: {what}" for n, what in check_text(file.read_text(encoding="utf-8"), words)]
  return found, len(words)


def main(arguments):
  root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
  found, count = check_tree(root)
  for line in found:
    print(line)
  if count == 0:
    print("check_words: docs/style.md forbids no word")
  else:
    print(f"check_words: {len(found)} to mend" if found else f"check_words: none of {count} words is used")
  return 1 if found or count == 0 else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
