# SPDX-License-Identifier: Apache-2.0
"""Writes a small checkpoint, converts it to one file per engine rank and back, and compares the three.

  python examples/python/convert.py [folder]
"""

import pathlib
import sys
import tempfile

import reshard


def show(phase: str, done: int, total: int) -> None:
  """Called about 20 times a second; raising, or returning False, cancels."""
  print(f"  {phase}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")


def main(folder: pathlib.Path) -> None:
  hf, engine, back = folder / "hf", folder / "engine", folder / "back"
  print(reshard.synthesize("demo-moe", hf))
  print(reshard.convert(hf, engine, to="vllm:tp=4", progress=show))

  # The engine's files say in which layout they are.
  model = reshard.open_model(engine)
  stored = reshard.Layout.of_checkpoint(model)
  print(stored.name, "holds, on rank 0,", stored.local(0)[0])

  reshard.convert(engine, back, to="hf", progress=False)
  for checkpoint in (engine, back):
    report = reshard.verify(hf, checkpoint, progress=False)
    print(report)
    if not report:
      raise SystemExit(f"{checkpoint} differs: {report.differing[:3]}")

  # Errors have one class for each kind, and say what would be right.
  try:
    reshard.convert(hf, engine, to="vllm:tp=4")
  except reshard.InvalidArgumentError as error:
    print(error)


if __name__ == "__main__":
  if len(sys.argv) > 1:
    main(pathlib.Path(sys.argv[1]))
  else:
    with tempfile.TemporaryDirectory() as folder:
      main(pathlib.Path(folder))
