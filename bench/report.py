# SPDX-License-Identifier: Apache-2.0
"""Results as JSON, as a Markdown table, and as the section of a page between two markers."""

import dataclasses
import itertools
import json

import rows as rows_module
from rows import BenchError

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLES = {
  "plan": "Planning",
  "balance": "Load of the busiest sender",
  "refit": "Refit in one process",
  "peer": "Refit against what is written by hand",
  "process": "Refit between processes of one host",
  "link": "Refit between hosts with links of 1 Gb/s",
  "fingerprint": "Fingerprint",
  "quantise": "Quantised weights",
  "session": "Sessions",
  "convert": "Conversion of a checkpoint",
  "simulate": "Simulated seconds: error against the measured ones",
  "gpu": "Refit on one GPU",
  "published": "Whole plans for layouts with published times",
}


def number(value, unit):
  """A figure with its unit and significant digits."""
  if value is None:
    return ""
  if unit == "s":
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
  digits = {"GB/s": 2, "MB": 0, "": 3}.get(unit, 2)
  return f"{value:.{digits}f} {unit}".rstrip()


def target_text(row):
  if row.target is None:
    return ""
  sign = "≤" if row.target_is_most else "≥"
  if row.target_is_ratio:
    return f"{sign} {row.target:.2f}"
  if not row.unit:
    return f"{sign} {row.target:.2f}"
  return f"{sign} {row.target:.4g} {row.unit}"


def cells(row):
  if row.skipped:
    return [row.what, "", "", "", "", "", f"not measured: {row.skipped}"]
  against = f"{number(row.against, row.unit)} {row.against_name}".strip()
  ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
  what = row.what + (f" ({row.note})" if row.note else "")
  figures = [number(row.figure, row.unit), number(row.best, row.unit)]
  return [what, *figures, against, ratio, target_text(row), row.outcome()]


def gigabytes(num_bytes):
  return f"{num_bytes / 1e9:.2f}"


def published_table(rows):
  """Counts of whole plans. Bytes in GB; the seconds on the link are those of the busiest rank alone."""
  lines = ["| layouts | ranks | delivered | on the wire | busiest sender | of the least | busiest receiver"]
  lines[0] += " | at 50 GB/s | published | planned in |"
  lines += ["| --- " + "| ---: " * 7 + "| --- | ---: |"]
  for row in rows:
    if row.skipped:
      lines.append(f"| {row.what}: not measured: {row.skipped} |" + " |" * 9)
      continue
    p = row.samples
    least = p["optimal_max_egress_bytes"]
    cells_of_row = [row.what, f"{p['ranks']:,}", gigabytes(p["bytes_total"]), gigabytes(p["bytes_wire"])]
    cells_of_row += [gigabytes(p["max_egress_bytes"]), f"{p['max_egress_bytes'] / max(least, 1):.3f}"]
    cells_of_row += [gigabytes(p["max_ingress_bytes"]), number(p["link_seconds"], "s"), row.note]
    lines.append("| " + " | ".join([*cells_of_row, number(row.figure, "s")]) + " |")
  return lines


def table(rows):
  """One Markdown table per part."""
  lines = []
  for part, group in itertools.groupby(rows, key=lambda r: r.part):
    lines += [f"### {TITLES.get(part, part)}", ""]
    if part == "published":
      lines += [*published_table(group), ""]
      continue
    lines += ["| what | median | best | against | ratio | target | |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in group] + [""]
  return "\n".join(lines)


def head(machine):
  load = ", ".join(f"{x:.2f}" for x in machine["load_average"])
  mode = ", quick run" if machine.get("quick") else ""
  return (
    f"{machine['date']}, {machine['cores']} cores of {machine['processor']}, "
    f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, commit {machine['commit']}, "
    f"load average at the start {load}{mode}.\n"
  )


def foot(rows):
  judged = [r for r in rows if r.outcome() in ("met", "missed")]
  noisy = sum(r.noise.disturbed() for r in rows)
  met = sum(r.outcome() == "met" for r in judged)
  text = f"{met} of {len(judged)} targets met."
  if noisy:
    text += f" {noisy} rows are noisy: others used the machine meanwhile, so they count for nothing."
  return text + "\n"


def markdown(machine, rows):
  return "\n".join([head(machine), table(rows), foot(rows)])


def write(folder, machine, rows):
  """Writes <date>-<cores>core.json and .md. Returns the path of the latter."""
  name = f"{machine['date']}-{machine['cores']}core" + ("-quick" if machine.get("quick") else "")
  folder.mkdir(parents=True, exist_ok=True)
  data = {"machine": machine, "rows": [dataclasses.asdict(r) for r in rows]}
  (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
  page = folder / f"{name}.md"
  page.write_text("<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Results\n\n" + markdown(machine, rows))
  return page


def read(path):
  """(machine, rows) of a file that `write` made."""
  data = json.loads(path.read_text())
  return data["machine"], [rows_module.from_dict(r) for r in data["rows"]]


def replace_section(page, section):
  """A page's text with the section between the markers replaced."""
  if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
    raise BenchError(f"the page needs one line {BEGIN} and after it one line {END}")
  before, rest = page.split(BEGIN)
  return f"{before}{BEGIN}\n{section}{END}{rest.split(END)[1]}"
