#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints line and branch coverage of each room and its folders; fails when a room is below the bound.

  tools/coverage_table.py <summary.json of gcovr>
"""

import collections
import json
import pathlib
import sys

LEAST_LINES = 90  # per cent of each room


def room_of(path):
  """reshard/<room>, or the program's folder."""
  parts = pathlib.PurePosixPath(path).parts
  return "/".join(parts[:2]) if parts[0] == "reshard" and len(parts) > 2 else parts[0]


def totals(files, key):
  """key(path) -> [lines run, lines, branches taken, branches]"""
  sums = collections.defaultdict(lambda: [0, 0, 0, 0])
  for file in files:
    counts = (file["line_covered"], file["line_total"], file["branch_covered"], file["branch_total"])
    for i, count in enumerate(counts):
      sums[key(file["filename"])][i] += count
  return sums


def percent(part, whole):
  """As a user reads it: rounded down, so that 90.0 is never less than 90."""
  return f"{(part * 1000 // whole) / 10:.1f} %" if whole else "-"


def row(name, counts):
  run, lines, taken, branches = counts
  return f"{name:<32} {lines:>7} {lines - run:>8} {percent(run, lines):>8} {percent(taken, branches):>9}"


def main(arguments):
  files = json.loads(pathlib.Path(arguments[0]).read_text())["files"]
  rooms = totals(files, room_of)
  folders = totals(files, lambda path: str(pathlib.PurePosixPath(path).parent))
  print(f"{'room':<32} {'lines':>7} {'not run':>8} {'lines':>8} {'branches':>9}")
  below = []
  for room in sorted(rooms):
    print(row(room, rooms[room]))
    run, lines = rooms[room][:2]
    if run * 100 < lines * LEAST_LINES:
      below.append(f"{room} ({percent(run, lines)})")
    inner = [folder for folder in sorted(folders) if folder.startswith(room + "/") and folder not in rooms]
    for folder in inner:
      print(row("  " + folder, folders[folder]))
  if not rooms:
    print("coverage: no file was counted")
    return 1
  print(row("all", [sum(column) for column in zip(*rooms.values())]))
  if below:
    print(f"coverage: below {LEAST_LINES} % of lines: {', '.join(below)}")
  return 1 if below else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
