# SPDX-License-Identifier: Apache-2.0
"""The program `reshard`, as the wheel has it: `reshard` on PATH and `python -m reshard` run it in this process."""

import os
import pathlib
import sys


def main() -> None:
  """Becomes the program. Where an engine is to be traced, it starts the Python that started it."""
  program = pathlib.Path(__file__).with_name("reshard")
  if not program.exists():
    sys.exit(f"reshard: {program} is missing: this package was built without the program (RESHARD_CLI=OFF)")
  os.environ.setdefault("RESHARD_PYTHON", sys.executable)
  os.execv(program, ["reshard", *sys.argv[1:]])


if __name__ == "__main__":
  main()
