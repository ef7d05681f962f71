# SPDX-License-Identifier: Apache-2.0
"""Fingerprints against a read-only pass over the same bytes."""

from machine import Watch
from programs import arguments, run_lines
from rows import Row, fastest, rates

READS = ("in_order", "streams")
TARGET = 0.8
# (dtype, shape, columns held, in quick runs too); all of at least 1 GiB, which no cache holds.
CASES = [
  ("BF16", "131072x4096", None, True),
  ("BF16", "38400x14336", None, False),
  ("F32", "93696x2880", None, True),
  ("F8_E4M3", "589824x1856", None, True),
  ("BF16", "6291456x768", "96,192", False),
]


def rows_of(programs, case, rounds, threads):
  dtype, shape, columns, _ = case
  argv = [programs.path("fingerprint_bench")]
  counts = ",".join(map(str, threads))
  argv += arguments(tensor=shape, dtype=dtype, columns=columns, rounds=rounds, threads=counts)
  watch = Watch()
  results = run_lines(argv)
  noise = watch.noise()
  for result in results:
    n = result["threads"]
    median, best = rates(result["seconds_fingerprint"], result["bytes"])
    read, ceiling = fastest(result, READS, result["bytes"])
    held = f", columns {columns}" if columns else ""
    what = f"{dtype} {shape}{held}, {n} thread" + ("s" if n > 1 else "")
    samples = {k: v for k, v in result.items() if k.startswith("seconds_")}
    yield Row(
      "fingerprint", what, "GB/s", median, best, ceiling, f"read ({read})", median / ceiling,
      TARGET, noise=noise, note=result["simd"], samples=samples,
    )  # fmt: skip


def measure(programs, quick, threads):
  """Yields the rows of fingerprints."""
  for case in CASES:
    if case[3] or not quick:
      yield from rows_of(programs, case, 5 if quick else 9, sorted({1, threads}))
