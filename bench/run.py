#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures reshard against the ceilings of this machine, and reports which targets are met.

  bench/run.py [--build build] [--quick] [--only plan,published,refit,process,link,...]
               [--out bench/results] [--scratch DIR]
  bench/run.py --render RESULTS.json     puts committed results into docs/performance.md
  bench/run.py --self-test               checks the driver itself; measures nothing

`make bench` builds what this runs. Writes <date>-<cores>core.json and .md; a quick run, which takes
under 3 minutes instead of under 20, writes <date>-<cores>core-quick.*. docs/performance.md says how each
figure is taken. Exit code 1 if something failed or moved a wrong byte; a missed target is not a failure.
"""

import argparse
import pathlib
import re
import sys

import convert_part
import fingerprint_part
import gpu_part
import link_part
import machine
import plan_part
import process_part
import published_part
import quantise_part
import refit_part
import report
import session_part
import simulate_part
from programs import Programs
from rows import BenchError

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PARTS = (
  "plan", "published", "refit", "process", "link", "fingerprint", "quantise", "session", "convert", "simulate", "gpu",
)  # fmt: skip
NEEDED = (
  "plan_bench", "refit_bench", "rank_bench", "fingerprint_bench", "quantise_bench", "session_bench",
)  # fmt: skip


def parse(arguments):
  parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__.split("\n")[0])
  parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder")
  parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
  parser.add_argument("--only", default=",".join(PARTS), help="parts, between commas")
  parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
  parser.add_argument("--scratch", type=pathlib.Path, help="folder for checkpoints (build folder)")
  parser.add_argument("--render", type=pathlib.Path, metavar="RESULTS.json")
  parser.add_argument("--self-test", action="store_true")
  chosen = parser.parse_args(arguments)
  chosen.only = chosen.only.split(",")
  for part in chosen.only:
    if part not in PARTS:
      parser.error(f"--only {part}: the parts are {', '.join(PARTS)}")
  return chosen


def check_build(build):
  """Errors: programs that are missing, or that were built for debugging."""
  missing = [n for n in NEEDED if not Programs(build, ROOT).has(n)]
  if missing:
    raise BenchError(f"{build}/bin lacks {', '.join(missing)}; build them with: make bench")
  cache = (build / "CMakeCache.txt").read_text()
  kind = re.search(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", cache, re.MULTILINE)
  sanitizers = re.search(r"^RESHARD_SANITIZE:\w+=(.+)$", cache, re.MULTILINE)
  if not kind or kind.group(1) not in ("Release", "RelWithDebInfo") or sanitizers:
    raise BenchError(f"{build} is not an optimised build; use Release or RelWithDebInfo")


def measure(chosen):
  """Yields every row."""
  programs, threads = Programs(chosen.build, ROOT), min(2, machine.cores())
  if "plan" in chosen.only:
    yield from plan_part.measure(programs, chosen.quick, threads)
  if "published" in chosen.only:
    yield from published_part.measure(programs, chosen.quick)
  if "refit" in chosen.only:
    yield from refit_part.measure(programs, chosen.build, chosen.quick, threads)
  if "process" in chosen.only:
    yield from process_part.measure(programs, chosen.quick)
  if "link" in chosen.only:
    yield from link_part.measure(programs, chosen.quick)
  if "fingerprint" in chosen.only:
    yield from fingerprint_part.measure(programs, chosen.quick, threads)
  if "quantise" in chosen.only:
    yield from quantise_part.measure(programs, chosen.quick, threads)
  if "session" in chosen.only:
    yield from session_part.measure(programs, chosen.quick)
  if "convert" in chosen.only:
    scratch = chosen.scratch or chosen.build / "bench-scratch"
    yield from convert_part.measure(programs, chosen.quick, scratch)
  if "simulate" in chosen.only:
    yield from simulate_part.measure(programs, chosen.quick)
  if "gpu" in chosen.only:
    yield from gpu_part.measure(programs, chosen.quick)


def render(path):
  rendered = report.markdown(*report.read(path))
  PAGE.write_text(report.replace_section(PAGE.read_text(), rendered))
  print(f"bench: {PAGE.relative_to(ROOT)} shows {path}")


def run(chosen):
  if chosen.only != ["gpu"]:  # That part needs the program only, and runs without a build folder.
    check_build(chosen.build)
  about = {**machine.describe(ROOT), "quick": chosen.quick, "parts": chosen.only}
  rows = []
  for row in measure(chosen):
    rows.append(row)
    print(" | ".join(c for c in report.cells(row) if c), file=sys.stderr, flush=True)
  page = report.write(chosen.out, about, rows)
  print(report.markdown(about, rows))
  print(f"bench: results are in {page} and beside it as JSON")


def main(arguments):
  chosen = parse(arguments)
  if chosen.self_test:
    import self_test

    return self_test.run(chosen.build)
  try:
    render(chosen.render) if chosen.render else run(chosen)
  except BenchError as error:
    print(f"bench: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
