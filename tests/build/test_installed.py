#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""After `make build` there is all that `cmake --install build` installs.

  test_installed.py <source folder>     configures as `make build` does, and compares what its target builds with
                                        what the install scripts copy out of the build folder
"""

import pathlib
import re
import subprocess
import sys
import tempfile


def said(*command, cwd):
  return subprocess.run([str(part) for part in command], cwd=cwd, check=True, capture_output=True, text=True).stdout


def main():
  source = pathlib.Path(sys.argv[1])
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name).resolve()
    lines = said("make", "-n", "build", f"BUILD={folder}", cwd=source).replace("\\\n", " ").splitlines()
    (command,) = [line for line in lines if "build.sh" in line]
    target, *settings = command.split()[3:]
    said("cmake", "-G", "Ninja", "-S", source, "-B", folder, "--log-level=ERROR", *settings, cwd=source)
    commands = said("ninja", "-C", folder, "-t", "commands", target, cwd=source)
    built = set(re.findall(r" (?:-o|qc|>) (\S+)", commands))  # of compilers and linkers, of ar, of the program
    scripts = [script.read_text() for script in folder.rglob("cmake_install.cmake")]
    copied = {path for text in scripts for path in re.findall(rf'"{folder}/([^"]+)"', text)}
    # What configuring makes is there; links of a shared library come with it.
    copied = {path for path in copied if not (folder / path).exists() and "$" not in path}
    missing = sorted(path for path in copied if path not in built and not re.fullmatch(r"lib/libreshard\.so[\d.]*", path))
  if not {"bin/reshard", "lib/libreshard.a", "share/man/man1/reshard.1"} <= copied or not built:
    sys.exit(f"the check no longer reads the build: {sorted(copied)}")
  for path in missing:
    print(f"{path}: is installed, and `make build` ({target}) does not make it")
  sys.exit(1 if missing else 0)


if __name__ == "__main__":
  main()
