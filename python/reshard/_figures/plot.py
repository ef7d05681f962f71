# SPDX-License-Identifier: Apache-2.0
"""Plans as figures. Needs matplotlib."""

import os
from typing import Any

import reshard
from reshard._figures.traffic import Groups, Traffic, traffic_of
from reshard._units import human_bytes

#: More cells or bars than these are too narrow to be told apart.
_MOST_CELLS = 64
_MOST_BARS = 128
#: With more bars than this the gaps between them would alias, so they touch.
_MOST_APART = 32


def plot_plan(
  plan: reshard.Plan, path: str | os.PathLike[str] | None = None, ranks_per_host: int = 8
) -> Any:
  """The figure of Plan.plot()."""
  try:
    from matplotlib.figure import Figure
  except ImportError as error:
    raise ImportError("plan.plot() needs matplotlib: pip install matplotlib") from error
  if path is not None and not isinstance(path, (str, os.PathLike)):
    raise TypeError(f"path must be a str, a path or None, not {type(path).__qualname__}")
  if ranks_per_host < 1:
    raise reshard.InvalidArgumentError(f"ranks_per_host is {ranks_per_host}; it must be 1 or more")

  figure: Any = Figure(figsize=(12, 5.2), layout="constrained")
  left, right = figure.subplots(1, 2)
  _draw_traffic(traffic_of(plan, _MOST_CELLS, ranks_per_host), figure, left, ranks_per_host)
  _draw_bytes(plan, right, ranks_per_host)
  figure.suptitle(f"{plan.source.name} to {plan.target.name}: {human_bytes(plan.bytes_wire)} on the wire")
  if path is not None:
    figure.savefig(path)
  return figure


def _draw_traffic(traffic: Traffic, figure: Any, axes: Any, host: int) -> None:
  """Who sends to whom, on a scale from nothing to the most that any two exchange."""
  image = axes.imshow(
    traffic.bytes, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0, vmax=max(1, traffic.most)
  )
  figure.colorbar(image, ax=axes, format=_bytes_format())
  sides = ((traffic.targets, "receiving", "x"), (traffic.sources, "sending", "y"))
  for groups, role, side in sides:
    step = -(-len(groups) // 16)
    shown = range(0, len(groups), step)
    getattr(axes, f"set_{side}ticks")(shown, [str(groups.members(i)[0]) for i in shown])
    getattr(axes, f"set_{side}label")(f"{role} {_what(groups)}")
    line = axes.axvline if side == "x" else axes.axhline
    if groups.size < host < len(groups.ranks):
      for border in range(host // groups.size, len(groups), host // groups.size):
        line(border - 0.5, color="grey", linewidth=0.5)
  if len(traffic.targets.ranks) > 100:
    axes.tick_params(axis="x", rotation=45)
  axes.set_title("who sends to whom")


def _draw_bytes(plan: reshard.Plan, axes: Any, host: int) -> None:
  """What each rank sends and receives, and the least that the busiest sender can send."""
  groups = Groups.of(range(len(plan.egress)), _MOST_BARS, host)
  count, width = len(groups), groups.size
  edges = [i * width - 0.5 for i in range(count + 1)]
  for i, (sizes, label) in enumerate(((plan.egress, "sends"), (plan.ingress, "receives"))):
    heights = [max(sizes[rank] for rank in groups.members(group)) for group in range(count)]
    if count <= _MOST_APART:
      places = [edge + (0.3 + 0.4 * i) * width for edge in edges[:-1]]
      axes.bar(places, heights, 0.4 * width, label=label)
    else:
      axes.stairs(heights, edges, fill=True, alpha=0.7, label=label)
  title = "bytes of each rank" if width == 1 else f"bytes of the busiest of each {width} ranks"
  bound = plan.optimal_max_egress_bytes
  axes.axhline(bound, color="black", linestyle="--", label="least possible for the busiest sender")
  axes.yaxis.set_major_formatter(_bytes_format())
  axes.xaxis.get_major_locator().set_params(integer=True)
  axes.set(xlabel="rank", title=title, ylim=(0, None))
  # Below the axes, where it covers no bar.
  axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2, frameon=False)


def _what(groups: Groups) -> str:
  return "rank" if groups.size == 1 else f"ranks, {groups.size} a cell (its first)"


def _bytes_format() -> Any:
  from matplotlib.ticker import FuncFormatter

  return FuncFormatter(lambda size, _: human_bytes(round(size)))
