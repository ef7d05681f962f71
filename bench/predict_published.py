#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of docs/simulation.md: layouts with published times, and what is predicted for them.

  bench/predict_published.py [build folder]
"""

import json
import pathlib
import sys

from published_part import PAIRS, ranks_of
from programs import Programs, run
from report import number

ROOT = pathlib.Path(__file__).resolve().parent.parent
H100, GB200 = "dgx-h100-400g", "gb200-nvl72"


def line_of(programs, model, source, target, published):
  cluster = GB200 if "GB200" in published else H100
  if "colocated" not in published:
    target = f"{target},offset={ranks_of(programs, model, source)}"
  argv = [programs.path("reshard"), "plan", "--model", programs.config(model), "--from", source, "--to", target]
  file = ROOT / "examples" / "clusters" / f"{cluster}.json"
  plan = json.loads(run([*argv, "--cluster", str(file), "--json"]))
  seconds, bound = plan["predicted_seconds"], plan["bound_seconds"]
  times = published.split(" ")[0].split("-") if published else []
  factor = f"{min(map(float, times)) / seconds:.1f}" if times else ""
  cells = [f"{model}, {source} to {target}", "GB200" if cluster == GB200 else "H100", number(seconds, "s")]
  return [*cells, number(bound, "s"), plan["bound_by"], published, factor]


def main(build):
  programs = Programs(build, ROOT)
  print("| layouts | cluster | predicted | bound | bound by | published, s | best published / predicted |")
  print("| --- | --- | ---: | ---: | --- | --- | ---: |")
  for pair in PAIRS:
    print("| " + " | ".join(line_of(programs, *pair)) + " |", flush=True)


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build"))
