#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C++ of the README is that of the examples, which are compiled and run: each block, up to its indentation, is a
run of lines of one example.

  test_readme.py <source folder>
"""

import pathlib
import re
import sys
import textwrap


def blocks(text):
  return [textwrap.dedent(block).strip() for block in re.findall(r"^```cpp\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def lines_of(text):
  return [line.strip() for line in text.splitlines() if line.strip()]


def holds(example, block):
  lines, wanted = lines_of(example), lines_of(block)
  return any(lines[at:at + len(wanted)] == wanted for at in range(len(lines)))


def main():
  root = pathlib.Path(sys.argv[1])
  examples = {path: path.read_text() for path in sorted(root.glob("examples/cpp/*.cc"))}
  found = blocks((root / "README.md").read_text())
  if not found:
    sys.exit("README.md: no block of C++ found")
  wrong = [block for block in found if not any(holds(text, block) for text in examples.values())]
  for block in wrong:
    print(f"README.md: no example in examples/cpp/ has these lines:\n{block}\n")
  sys.exit(1 if wrong else 0)


if __name__ == "__main__":
  main()
