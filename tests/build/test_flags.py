#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo` builds without the tests, `make test` with them: nothing may be compiled a second time.

  test_flags.py <source folder>     configures both ways and compares the commands of every object
"""

import json
import pathlib
import subprocess
import sys
import tempfile


def commands(source, folder, dev):
  """Object -> the command that compiles it, in a build folder configured with RESHARD_DEV=dev."""
  configure = ["cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DRESHARD_DEV={dev}", "--log-level=ERROR"]
  subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
  entries = json.loads((pathlib.Path(folder) / "compile_commands.json").read_text())
  return {entry["command"].split(" -o ", 1)[1].split()[0]: entry["command"] for entry in entries}


def main():
  with tempfile.TemporaryDirectory() as folder:
    program = commands(sys.argv[1], folder, "OFF")
    tests = commands(sys.argv[1], folder, "ON")
  again = sorted(name for name, command in program.items() if tests.get(name) != command)
  for name in again:
    print(f"{name}: `make test` compiles it anew:\n  {program[name]}\n  {tests.get(name)}")
  if len(program) < 30:
    sys.exit(f"only {len(program)} objects found; the check no longer reads the build")
  sys.exit(1 if again else 0)


if __name__ == "__main__":
  main()
