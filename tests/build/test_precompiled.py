#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: a precompiled header is that of the header as it is, not what ccache saw replace an earlier one.

  test_precompiled.py <source folder>

Two changes of a header, each of which starts from the same precompiled one, as in two copies of a build folder.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def main():
  ccache = shutil.which("ccache")
  if ccache is None:
    print("no ccache here: nothing is cached")
    return
  launcher = [str(pathlib.Path(sys.argv[1]) / "cmake/ccache.sh"), ccache, "c++", "-Winvalid-pch"]
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    header, made, source = folder / "all.hxx", folder / "all.hxx.gch", folder / "all.hxx.cxx"
    source.write_text("")
    (folder / "main.cc").write_text("int main() { return value(); }\n")

    def run(*command):
      subprocess.run(command, check=True, cwd=folder, env={**os.environ, "CCACHE_DIR": str(folder / "cache")})

    def built(value):
      """What the program returns that is built after the header says `value`."""
      header.write_text(f"inline int value() {{ return {value}; }}\n")
      os.utime(header, (1e9 + value, 1e9 + value))  # ccache looks twice at what is as new as the cache
      run(*launcher, "-x", "c++-header", "-include", str(header), "-o", str(made), "-c", str(source))
      run(*launcher, "-include", str(header), "-c", "main.cc", "-o", "main.o")
      run("c++", "main.o", "-o", "main")
      return subprocess.run([folder / "main"]).returncode

    said = [built(1)]
    shutil.copy(made, folder / "first")
    said.append(built(2))
    shutil.copy(folder / "first", made)
    said.append(built(3))
  if said != [1, 2, 3]:
    sys.exit(f"programs built from headers that say 1, 2 and 3 return {said}")


if __name__ == "__main__":
  main()
