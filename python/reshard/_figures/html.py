# SPDX-License-Identifier: Apache-2.0
"""Objects as HTML, for notebooks."""

import html

import reshard
from reshard._figures.traffic import Groups, traffic_of
from reshard._tables import layout_text, model_text, note_lines, side_rows, total_rows
from reshard._units import human_bytes

#: A wider table does not fit a page.
_MOST_CELLS = 64
_HEAD = "padding:0 2px;writing-mode:vertical-rl;"
_CELL = "padding:0;border:1px solid #fff;min-width:1.1em;height:1.1em;"


def _pre(text: str) -> str:
  return f"<pre>{html.escape(text)}</pre>"


def model_html(model: reshard.Model) -> str:
  return _pre(model_text(model))


def layout_html(layout: reshard.Layout) -> str:
  return _pre(layout_text(layout))


def _rows(rows: list[list[str]]) -> str:
  lines = []
  for row in rows:
    cells = "".join(f"<td style='text-align:left'>{html.escape(cell.strip())}</td>" for cell in row)
    lines.append(f"<tr>{cells}</tr>")
  return f"<table>{''.join(lines)}</table>"


def _colour(size: int, most: int) -> str:
  """From white to blue, by the bytes."""
  if size == 0 or most == 0:
    return "#f4f4f4"
  share = 0.15 + 0.85 * size / most
  red, green = (round(255 - share * (255 - deep)) for deep in (33, 102))
  return f"#{red:02x}{green:02x}{round(255 - share * 83):02x}"


def heat_map(plan: reshard.Plan) -> str:
  """Who sends to whom: a row for each sender, a column for each receiver; its shade is the bytes.

  Neighbours share a row or column where ranks are too many.
  """
  try:
    traffic = traffic_of(plan, _MOST_CELLS, host=8)
  except reshard.UnsupportedError as error:
    return f"<p>The map is not drawn: {html.escape(str(error))}.</p>"
  most, one = traffic.most, traffic.sources.size == traffic.targets.size == 1
  sources = [_ranks(traffic.sources, s) for s in range(len(traffic.sources))]
  targets = [_ranks(traffic.targets, t) for t in range(len(traffic.targets))]
  head = "".join(f"<th style='{_HEAD}'>{t.split()[1]}</th>" for t in targets)
  body = []
  for source, row in zip(sources, traffic.bytes, strict=True):
    cells = []
    for target, size in zip(targets, row, strict=True):
      what = f"{source} to {target}: {human_bytes(size)}" + (", local" if one and source == target else "")
      cells.append(f"<td title='{what}' style='{_CELL}background:{_colour(size, most)}'></td>")
    body.append(f"<tr><th style='padding:0 4px'>{source.split()[1]}</th>{''.join(cells)}</tr>")
  note = f"rows send, columns receive; the darkest is {human_bytes(most)}"
  return (
    f"<table style='border-collapse:collapse;font-size:80%'><caption>{note}</caption>"
    f"<tr><th></th>{head}</tr>{''.join(body)}</table>"
  )


def _ranks(groups: Groups, group: int) -> str:
  """"rank 3" or "ranks 8-15"."""
  return f"rank{'s' if groups.size > 1 else ''} {groups.label(group)}"


def plan_html(plan: reshard.Plan) -> str:
  """The tables of print(plan), and a heat map of who sends to whom."""
  notes = "".join(f"<li>{html.escape(line)}</li>" for line in note_lines(plan))
  title = html.escape(repr(plan.source.model)[1:-1])
  listed = f"<ul>{notes}</ul>" if notes else ""
  return f"<b>{title}</b>{_rows(side_rows(plan))}{_rows(total_rows(plan))}{listed}{heat_map(plan)}"
