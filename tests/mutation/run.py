#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flips one layout rule after the other and says which flips no test notices.

  tests/mutation/run.py BUILD [--only WORD]
  tests/mutation/run.py --applies              says which rules' texts no longer stand in their files, and flips nothing

BUILD is the build folder whose Python environment is used. Works on a copy of the sources in BUILD/mutants, so the
checkout stays as it is. Each rule of rules.py is a text that stands exactly once in its file, and what it is replaced by:
an order, an offset, a stride, an axis the other way round. A flip is noticed when the C++ tests of the layouts fail, or
else the comparison with the independent Python oracle. Exit code 1 when a flip went unnoticed or no longer applies.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

import rules

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("reshard", "cli", "bench", "tests", "cmake", "tools", "examples", "docs")
FILES = ("CMakeLists.txt", "README.md", "Makefile")
# A flip may leave a variable unused.
SETTINGS = ("-DRESHARD_DEV=ON", "-DRESHARD_WARNINGS_ARE_ERRORS=OFF")
TARGETS = ("reshard_model_tests", "reshard")
PYTHON_TESTS = ("tests/python/test_layouts.py", "tests/python/test_dtensor.py")
MOST_SECONDS = 600


def source_files():
  """Paths of the checkout's sources, relative to it."""
  found = [pathlib.Path(name) for name in FILES]
  for folder in FOLDERS:
    files = (ROOT / folder).rglob("*")
    found += [f.relative_to(ROOT) for f in files if f.is_file() and "__pycache__" not in f.parts]
  return set(found)


def copy_sources(copy):
  """Makes the copy equal to the checkout; files that did not change keep their time."""
  wanted = source_files()
  for folder in FOLDERS:
    for path in list((copy / folder).rglob("*")):
      if path.is_file() and path.relative_to(copy) not in wanted:
        path.unlink()
  for name in wanted:
    old, new = copy / name, (ROOT / name).read_bytes()
    if not old.exists() or old.read_bytes() != new:
      old.parent.mkdir(parents=True, exist_ok=True)
      old.write_bytes(new)
      old.chmod((ROOT / name).stat().st_mode)


def run(argv, copy, **environment):
  return subprocess.run(
    argv, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    timeout=MOST_SECONDS, env={**os.environ, **environment},
  )  # fmt: skip


def build(copy):
  for target in TARGETS:
    done = run(["tools/build.sh", "build", str(os.cpu_count()), target, *SETTINGS], copy)
    if done.returncode != 0:
      return done.stdout[-2000:]
  return None


def noticed_by(copy, python):
  """The tests that fail, or None."""
  done = run(["build/bin/reshard_model_tests"], copy)
  if done.returncode != 0:
    return "reshard_model_tests"
  tests = [test for test in PYTHON_TESTS if (copy / test).exists()]
  argv = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
  done = run(argv, copy, RESHARD_BIN=str(copy / "build/bin/reshard"))
  return None if done.returncode == 0 else "the Python oracle"


def check(rule, copy, python):
  """What became of one flip: (noticed, words)."""
  if words := stands(rule, copy):
    return False, words
  path = copy / rule.file
  text = path.read_text()
  try:
    path.write_text(text.replace(rule.find, rule.replace))
    error = build(copy)
    if error:
      return False, f"does not compile:\n{error}"
    by = noticed_by(copy, python)
    return by is not None, f"noticed by {by}" if by else "went unnoticed"
  except subprocess.TimeoutExpired as expired:
    return True, f"noticed: {expired.cmd[0]} did not end"
  finally:
    path.write_text(text)


def stands(rule, root):
  """None where the rule's text stands once in its file, else what is wrong."""
  count = (root / rule.file).read_text().count(rule.find)
  return None if count == 1 else f"its text stands {count} times in {rule.file}, must be once"


def applies():
  """Whether every rule's text stands where it says; prints those that do not."""
  wrong = [(rule, words) for rule in rules.RULES if (words := stands(rule, ROOT))]
  for rule, words in wrong:
    print(f"FAIL {rule.family}: {rule.name}: {words}")
  return not wrong


def main(arguments):
  parser = argparse.ArgumentParser(prog="tests/mutation/run.py", description=__doc__.split("\n")[0])
  parser.add_argument("build", type=pathlib.Path, nargs="?")
  parser.add_argument("--applies", action="store_true", help="only look whether the rules' texts are there")
  parser.add_argument("--only", default="", help="rules whose family or name contains this")
  chosen = parser.parse_args(arguments)
  if chosen.applies:
    return 0 if applies() else 1
  if chosen.build is None:
    parser.error("BUILD is missing")
  copy = chosen.build.resolve() / "mutants"
  python = str(chosen.build.resolve() / "venv" / "bin" / "python")
  copy_sources(copy)
  if error := build(copy):
    print(f"the sources as they are do not compile:\n{error}")
    return 1
  if by := noticed_by(copy, python):
    print(f"the sources as they are fail {by}")
    return 1
  passed = failed = 0
  for rule in rules.RULES:
    if chosen.only not in f"{rule.family}: {rule.name}":
      continue
    begin = time.monotonic()
    noticed, words = check(rule, copy, python)
    passed, failed = passed + noticed, failed + (not noticed)
    mark = "ok  " if noticed else "FAIL"
    print(f"{mark} {rule.family}: {rule.name}: {words} ({time.monotonic() - begin:.0f} s)", flush=True)
  print(f"{passed} passed, {failed} failed")
  return 1 if failed or not passed else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
