# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a session: microseconds to register a tensor, milliseconds to a refit. Needs torch and the package.

  python bench/python_session.py [tensors]
"""

import statistics
import sys
import time

import torch

import reshard


def main(count: int = 1000, refits: int = 50) -> None:
  model = reshard.Model.from_tensors("many", {f"layers.{i}.weight": ((16, 16), "bfloat16") for i in range(count)})
  layout = reshard.layout("hf", model)
  source = {t.name: torch.ones(t.shape, dtype=torch.bfloat16) for t in layout.local(0)}
  target = {t.name: torch.zeros(t.shape, dtype=torch.bfloat16) for t in layout.local(0)}

  registered = []
  for _ in range(20):
    start = time.perf_counter()
    reshard.RankBuffers(layout, {0: source})
    registered.append(time.perf_counter() - start)
  print(f"{count} torch tensors registered: {statistics.median(registered) / count * 1e6:.2f} us each")

  session = reshard.Session(
    reshard.local(1)[0], source=layout, source_tensors=source, target=layout, target_tensors=target
  )
  added = []
  for version in range(1, refits + 1):
    start = time.perf_counter()
    report = session.refit(version)
    added.append(time.perf_counter() - start - report.seconds)
  print(f"a refit of {2 * count} tensors in Python: {statistics.median(added) * 1e3:.3f} ms beside the library's own time")


if __name__ == "__main__":
  main(*map(int, sys.argv[1:]))
