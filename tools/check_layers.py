#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who may include whom, and the few rules of style that a reader would otherwise have to.

  tools/check_layers.py [root]     prints "file:line: what is wrong" for each, and fails if there is any

A room may include itself and what its reshard_room(...) line in CMakeLists.txt reaches; the names in NEVER
hold even where that line would allow it. In a folder of a room, a header of `namespace reshard` is an interface;
one of `namespace reshard::FOLDER` is internal to the room. docs/style.md has the rules in prose. When all is in
order, it prints the folders and the number of their product files.
"""

import ast
import pathlib
import re
import sys

import type_names

FOLDERS = ("reshard", "cli", "python", "bench", "tests", "examples", "tools", "cmake")
SOURCES = {".h", ".cc", ".cu", ".cuh", ".inc"}
TEXTS = SOURCES | {".py", ".sh", ".cmake"}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_FOLDER_FILES = 25
# Not part of the product: tests, what they share, and benchmarks beside the code.
NOT_PRODUCT = ("_test.cc", "_testutil.h", "_testutil.cc", "_bench.cc")

# Room -> the only rooms it may include, itself aside, and rooms that no room may include.
ONLY = {"base": set(), "transport": {"base", "memory"}}
NEVER = {"plan": {"transport"}}
TOP_ROOMS = {"io", "refit", "fleet", "megatron", "dtensor", "convert", "gpu_transport"}
# What the rooms above the others may include of them.
ABOVE = {"convert": {"io", "refit"}, "megatron": {"refit"}, "dtensor": {"refit"}}
# A program that has two types of one name on purpose.
TWO_TYPES = "tests/one_definition/example/"
# Headers for users: they may include any room, and no room may include them.
FRONT_DOORS = ("reshard/reshard.h", "reshard/megatron.h", "reshard/dtensor.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NAMESPACE = re.compile(r"^namespace reshard::(\w+)", re.MULTILINE)
UNFINISHED = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|N[O]COMMIT)\b")
NOISE = re.compile(
  r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
  r"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
  re.DOTALL | re.MULTILINE,
)
TEMPLATE_PARAMETER = re.compile(r"[<,]\s*(class|struct|typename)\b")
CONTINUES = re.compile(r"\s*[,{]")
SCOPE = re.compile(r"^\s*(inline\s+)?namespace\b|\b(class|struct|union|enum)\b[^()]*$|^\s*extern\s*$")


def reachable_rooms(cmake_text):
  """Room -> every room that its line in CMakeLists.txt lets it use, directly or through another."""
  direct = {}
  for name, rest in re.findall(r"^reshard_room\((\w+)([^)]*)\)", cmake_text, re.MULTILINE):
    rooms = re.search(r"\bROOMS\b([\w\s]*?)(?:\bLIBS\b|$)", rest)
    direct[name] = set(rooms.group(1).split()) if rooms else set()

  def reach(name):
    return direct[name].union(*(reach(room) for room in direct[name]))

  return {name: reach(name) for name in direct}


def check_own_include(path, target, rooms):
  """What is wrong with a quoted include of `target` in `path` (both from the root), or None."""
  top, room = path.parts[0], path.parts[1]
  to = target.split("/")
  if to[0] not in FOLDERS:
    return f'include "{target}": write the path from the root of the repository'
  if to[0] != "reshard":
    return None if to[0] == top else f'{top}/ must not include "{target}": only {to[0]}/ may'
  if path.as_posix() in FRONT_DOORS:
    return None
  if top == "reshard" and target in FRONT_DOORS:
    return f'"{target}" is for users: include the headers that {path.name} needs'
  of_test = path.stem.endswith(("_test", "_testutil", "_bench"))
  if top != "reshard" or to[1] == room or (of_test and target.endswith("_testutil.h")):
    return None
  if room not in rooms:
    return f"reshard/{room} has no reshard_room(...) line in CMakeLists.txt"
  allowed = ONLY.get(room, rooms[room]) - NEVER.get(room, set()) - (TOP_ROOMS - ABOVE.get(room, set()))
  if to[1] in allowed:
    return None
  return f'room {room} must not include "{target}"; it may use {sorted(allowed) or "nothing"}'


def check_library_include(path, target):
  """What is wrong with an include of an external library's header, or None."""
  place, header = path.as_posix(), path.suffix in (".h", ".cuh")
  if target.startswith("nlohmann/") and (
    header or not place.startswith(("reshard/io/", "cli/", "tests/"))
  ):
    return f"<{target}>: JSON only in .cc files of reshard/io, cli and tests"
  if target.startswith("fmt/") and header:
    return f"<{target}>: no fmt in headers"
  if target.startswith("spdlog/") and (header or not place.startswith("reshard/base/")):
    return f"<{target}>: log through reshard/base"
  if target.startswith("CLI/") and (header or not place.startswith("cli/")):
    return f"<{target}>: CLI11 only in one .cc file of cli"
  return None


def namespace_of_folder(path, text):
  """The nested namespace of a product header in a room's folder; None for an interface, which may be in the namespace of
  its room, and for everything else."""
  if path.parts[0] != "reshard" or len(path.parts) < 4 or path.name.endswith(NOT_PRODUCT) or path.suffix != ".h":
    return None
  name = NAMESPACE.search(text)
  return name.group(1) if name and name.group(1) != path.parts[1] else None


def check_folders(sources):
  """Violations of what the folders of a room promise; `sources`: path from the root -> text."""
  internal = {name: namespace_of_folder(pathlib.PurePath(name), text) for name, text in sources.items()}
  for name, text in sources.items():
    path = pathlib.PurePath(name)
    if internal[name] and internal[name] not in path.parts[2:-1]:
      yield f"{name}:1: namespace {internal[name]} in a folder of another name"
    if path.parts[0] in ("tests", "bench", "python") or path.name.endswith(NOT_PRODUCT):
      continue
    for number, line in enumerate(text.splitlines(), 1):
      include = INCLUDE.match(line)
      target = include.group(2) if include else ""
      if internal.get(target) and path.parts[:2] != pathlib.PurePath(target).parts[:2]:
        yield f'{name}:{number}: "{target}" is internal to its room: namespace {internal[target]}'
  for name in sorted(set(internal) - outside_users(sources)):
    path = pathlib.PurePath(name)
    in_folder = path.parts[0] == "reshard" and len(path.parts) > 3 and path.suffix == ".h"
    declares = in_folder and re.search(rf"^namespace reshard\b(?!::{path.parts[1]}\b)", sources[name], re.MULTILINE)
    if declares and not internal[name] and not name.endswith(NOT_PRODUCT):
      yield f"{name}:1: no other room uses it: put it into namespace reshard::{path.parts[2]}"
  for folder, count in product_files(sources).items():
    if count > MAX_FOLDER_FILES:
      yield f"{folder}:1: {count} product files; a folder has at most {MAX_FOLDER_FILES}"


def outside_users(sources):
  """The headers that other rooms, programs or the front doors include, directly or through another header."""
  includes = {name: [m.group(2) for m in map(INCLUDE.match, text.splitlines()) if m] for name, text in sources.items()}
  used, pending = set(), [*FRONT_DOORS]
  for name, targets in includes.items():
    pending += [t for t in targets if t.startswith("reshard/") and name.split("/")[:2] != t.split("/")[:2]]
  while pending:
    name = pending.pop()
    if name not in used:
      used.add(name)
      pending += [target for target in includes.get(name, []) if target.endswith(".h")]
  return used


def product_files(sources):
  """Folder -> the number of its product files, in the order of the paths."""
  count = {}
  for name in sorted(sources):
    path = pathlib.PurePath(name)
    if path.parts[0] in ("reshard", "cli", "bench", "python") and not path.name.endswith(NOT_PRODUCT):
      count[path.parent.as_posix()] = count.get(path.parent.as_posix(), 0) + 1
  return count


def print_tree(sources):
  """Each folder under its parent, with its product files."""
  counts = product_files(sources)
  folders = {parent.as_posix() for folder in counts for parent in [pathlib.PurePath(folder), *pathlib.PurePath(folder).parents]}
  for folder in sorted(folders - {"."}, key=lambda name: name.split("/")):
    depth = folder.count("/")
    print(f"{'  ' * depth}{folder.split('/')[-1] + '/':<{26 - 2 * depth}}{counts.get(folder, 0):>4}")


def opens_function(head):
  """True when `head`, the text before a brace outside any function, is that of a function."""
  before = TEMPLATE_PARAMETER.sub("<", head).split("(")[0]
  return "(" in head and head.count("(") == head.count(")") and not SCOPE.search(before)


def functions(source):
  """(first line, last line) of each function body, by counting braces outside literals and comments."""
  clean = NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
  depth, start, head = 0, None, 0
  for i, c in enumerate(clean):
    if c == "{":
      if start is None and opens_function(clean[head:i]):
        start, depth = i, 0
      depth += 1
    elif c == "}":
      depth -= 1
      # A brace in an initialiser list, as in `Box() : at_{} {`, is followed by another.
      if start is not None and depth == 0 and not CONTINUES.match(clean, i + 1):
        yield clean.count("\n", 0, start) + 1, clean.count("\n", 0, i) + 1
        start = None
    if c in "{};":
      head = i + 1


def check_lengths(path, text):
  lines = text.count("\n")
  if lines > MAX_FILE_LINES:
    yield 1, f"{lines} lines; split files above {MAX_FILE_LINES}"
  if path.suffix in SOURCES:
    bodies = functions(text)
  elif path.suffix == ".py":
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, kinds))
    bodies = ((n.lineno, n.end_lineno) for n in nodes)
  else:
    bodies = ()
  for first, last in bodies:
    if last - first >= MAX_FUNCTION_LINES:
      yield first, f"a function of {last - first + 1} lines; split those above {MAX_FUNCTION_LINES}"


def check_file(path, text, rooms):
  """Yields (line, what is wrong) for one file; `path` is from the root."""
  lines = text.splitlines()
  if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
    yield 1, "begin with the line SPDX-License-Identifier: Apache-2.0"
  if path.suffix in (".h", ".cuh") and "#pragma once" not in lines:
    yield 1, "a header needs #pragma once"
  yield from check_lengths(path, text)
  for number, line in enumerate(lines, 1):
    if UNFINISHED.search(line):
      yield number, "unfinished work: do it, or open an issue"
    include = INCLUDE.match(line) if path.suffix in SOURCES else None
    if include:
      wrong = check_library_include(path, include.group(2))
      if include.group(1) == '"':
        wrong = wrong or check_own_include(path, include.group(2), rooms)
      if wrong:
        yield number, wrong


def check_tree(root):
  """(every violation under `root` as a line "file:line: what", path of each C++ source -> its text)."""
  rooms = reachable_rooms((root / "CMakeLists.txt").read_text())
  found, cli11, sources = [], [], {}
  paths = [p for top in FOLDERS for p in sorted((root / top).rglob("*"))]
  for file in paths:
    path = file.relative_to(root)
    if file.suffix not in TEXTS and file.name != "CMakeLists.txt" or not file.is_file():
      continue
    text = file.read_text(encoding="utf-8")
    if file.suffix in SOURCES and not path.as_posix().startswith(TWO_TYPES):
      sources[path.as_posix()] = text
    if re.search(r"^\s*#\s*include\s*<CLI/", text, re.MULTILINE):
      cli11.append(path)
    found += [f"{path.as_posix()}:{n}: {what}" for n, what in check_file(path, text, rooms)]
  for path in cli11[1:]:
    found.append(f"{path.as_posix()}:1: CLI11 is already included by {cli11[0].as_posix()}")
  for path, line, name, first in type_names.defined_twice(sources):
    found.append(f"{path}:{line}: {first} defines {name}, too; rename one, or give it a namespace")
  found += check_folders(sources)
  return found, sources


def main(arguments):
  root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
  found, sources = check_tree(root)
  if not found:
    print_tree(sources)
  for line in found:
    print(line)
  print(f"check_layers: {len(found)} to mend" if found else "check_layers: all in order")
  return 1 if found else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
