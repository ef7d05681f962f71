# SPDX-License-Identifier: Apache-2.0
"""Numbers and tables as people read them."""

from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def human_bytes(size: int) -> str:
  """"1.23 GB": decimal units, three digits. Bytes below 1000 are exact."""
  if abs(size) < 1000:
    return f"{size} B"
  value, unit = float(size), 0
  while abs(value) >= 999.5 and unit + 1 < len(_UNITS):
    value, unit = value / 1000, unit + 1
  digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
  return f"{value:.{digits}f} {_UNITS[unit]}"


def human_seconds(seconds: float) -> str:
  """"12.3 ms", "1.20 s"."""
  for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
    value = seconds * scale
    if value >= 1 or unit == "us":
      return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
  return f"{seconds} s"


def plural(count: int, what: str) -> str:
  """"1 rank", "3 ranks"."""
  return f"{count:,} {what}{'' if count == 1 else 's'}"


def percent(part: int, whole: int) -> str:
  return f"{100 * part / whole:.1f} %" if whole else "-"


def rank_text(ranks: Sequence[int]) -> str:
  """"{0-7, 16}" of ascending ranks."""
  runs: list[list[int]] = []
  for rank in ranks:
    if runs and runs[-1][1] + 1 == rank:
      runs[-1][1] = rank
    else:
      runs.append([rank, rank])
  return "{" + ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) + "}"


def table(rows: Sequence[Sequence[str]], right: str = "", title: bool = False) -> str:
  """Aligned columns, two spaces apart. `right` has an r for each column that is aligned there."""
  if not rows:
    return ""
  columns = max(len(row) for row in rows)
  cells = [[*(_printable(cell) for cell in row), *[""] * (columns - len(row))] for row in rows]
  widths = [max(len(row[i]) for row in cells) for i in range(columns)]
  flags = right.ljust(columns, "l")
  lines = []
  for row in cells:
    parts = [
      cell.rjust(width) if flag == "r" else cell.ljust(width)
      for cell, width, flag in zip(row, widths, flags, strict=True)
    ]
    lines.append("  " + "  ".join(parts).rstrip())
  if title:
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
  return "\n".join(lines)


def _printable(cell: str) -> str:
  """Without control characters, which names in files may contain."""
  return "".join(c if c.isprintable() else "?" for c in cell)
