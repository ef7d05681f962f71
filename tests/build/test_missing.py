#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A build without the libraries or the compiler that it needs says in one line which Debian packages have them.

  test_missing.py <source folder>     configures without fmt and zlib, and without a compiler
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HIDDEN = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("fmt", "ZLIB")]


def said_by(source: str, folder: str, environment: dict[str, str], *options: str) -> str:
  """The line of the one error of a configuration."""
  command = [shutil.which("cmake"), "-G", "Ninja", "-S", source, "-B", folder, "-DRESHARD_DEV=OFF", *HIDDEN, *options]
  result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
  if result.returncode == 0 or result.stderr.count("CMake Error") != 1:
    sys.exit(f"configuring without what is needed ended with {result.returncode} and said: {result.stderr}")
  return next((line for line in result.stderr.splitlines() if "apt-get" in line), result.stderr)


def main():
  source = sys.argv[1]
  begin = "reshard needs what was not found here. On Debian: apt-get install "
  with tempfile.TemporaryDirectory() as folder:
    said = said_by(source, folder, dict(os.environ))
    if begin + "libfmt-dev zlib1g-dev" not in said:
      sys.exit(f"configuring without fmt and zlib said: {said}")
  with tempfile.TemporaryDirectory() as folder:
    programs = pathlib.Path(folder, "bin")
    programs.mkdir()
    (programs / "ninja").symlink_to(shutil.which("ninja"))
    bare = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX")} | {"PATH": str(programs)}
    # pip names the compiler that Python was built with.
    for name, environment in (("none", bare), ("pip", bare | {"CXX": "x86_64-linux-gnu-g++ -pthread"})):
      said = said_by(source, f"{folder}/{name}", environment, "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF")
      if begin + "g++ " not in said or "libfmt-dev" not in said:
        sys.exit(f"configuring without a compiler said: {said}")


if __name__ == "__main__":
  main()
