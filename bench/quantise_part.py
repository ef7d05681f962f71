# SPDX-License-Identifier: Apache-2.0
"""Quantising and dequantising BF16 weights against a copy that moves as many bytes in and out."""

from machine import Watch
from programs import arguments, run_lines
from refit_part import PLAIN_COPIES
from rows import Row, fastest, rates

TARGET = 0.7
# (format, matrix, in quick runs too)
CASES = [
  ("mxfp8", "4096x14336", True),
  ("mxfp8", "2688x1856", False),
  ("mxfp8", "2880x2880", False),
  ("fp8_block", "4096x14336", True),
  ("fp8_block", "2688x1856", False),
  ("fp8_block", "2880x2880", False),
  ("fp8_block_pow2", "4096x14336", False),
  ("mxfp8_swizzled", "4096x14336", False),
  ("nvfp4", "4096x14336", False),
]


def direction_row(what, way, result, noise):
  # The copies move plain_bytes in and out: in total as much as quantising moves.
  median, best = rates(result[f"seconds_{way}"], result["plain_bytes"])
  plain, ceiling = fastest(result, PLAIN_COPIES, result["plain_bytes"])
  samples = {k: v for k, v in result.items() if k.startswith(("seconds_", "bytes"))}
  target = TARGET if result["simd"] == "avx512" else None
  return Row(
    "quantise", what, "GB/s", median, best, ceiling, f"copy ({plain})", median / ceiling, target,
    noise=noise, note=result["simd"], samples=samples,
  )  # fmt: skip


def rows_of(programs, case, rounds, threads):
  name, matrix, _ = case
  counts = ",".join(map(str, threads))
  argv = [programs.path("quantise_bench")]
  argv += arguments(format=name, matrix=matrix, rounds=rounds, threads=counts)
  watch = Watch()
  results = run_lines(argv)
  noise = watch.noise()
  for result in results:
    n = result["threads"]
    place = f"{matrix}, {n} thread" + ("s" if n > 1 else "")
    yield direction_row(f"BF16 to {name}, {place}", "quantise", result, noise)
    yield direction_row(f"{name} to BF16, {place}", "dequantise", result, noise)


def measure(programs, quick, threads):
  """Yields the rows of quantised formats."""
  for case in CASES:
    if case[2] or not quick:
      yield from rows_of(programs, case, 5 if quick else 9, sorted({1, threads}))
