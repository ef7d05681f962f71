# SPDX-License-Identifier: Apache-2.0
"""Plans as figures. Needs matplotlib."""

import os
from typing import Any

import reshard
from reshard._units import human_bytes


def plot_plan(plan: reshard.Plan, path: str | os.PathLike[str] | None = None) -> Any:
  """The figure of Plan.plot()."""
  try:
    from matplotlib.figure import Figure
  except ImportError as error:
    raise ImportError("plan.plot() needs matplotlib: pip install matplotlib") from error

  figure: Any = Figure(figsize=(11, 4.5), layout="constrained")
  left, right = figure.subplots(1, 2)
  _draw_traffic(plan, figure, left)
  _draw_bytes(plan, right)
  figure.suptitle(f"{plan.source.name} to {plan.target.name}: {human_bytes(plan.bytes_wire)} on the wire")
  if path is not None:
    figure.savefig(path)
  return figure


def _draw_traffic(plan: reshard.Plan, figure: Any, axes: Any) -> None:
  """Who sends to whom."""
  sources, targets, traffic = plan.source.ranks, plan.target.ranks, plan.traffic
  cells = [[traffic[s, t] / 1e9 for t in targets] for s in sources]
  image = axes.imshow(cells, aspect="auto", cmap="Blues", interpolation="nearest")
  figure.colorbar(image, ax=axes, label="GB")
  axes.set(xlabel="receiving rank", ylabel="sending rank", title="who sends to whom")
  for ranks, ticks in ((targets, axes.set_xticks), (sources, axes.set_yticks)):
    step = max(1, len(ranks) // 16)
    ticks(range(0, len(ranks), step), [str(rank) for rank in ranks[::step]])


def _draw_bytes(plan: reshard.Plan, axes: Any) -> None:
  """What each rank sends and receives, and the least that the busiest sender can send."""
  ranks = range(len(plan.egress))
  axes.bar([rank - 0.2 for rank in ranks], [size / 1e9 for size in plan.egress], 0.4, label="sends")
  axes.bar([rank + 0.2 for rank in ranks], [size / 1e9 for size in plan.ingress], 0.4, label="receives")
  bound = plan.optimal_max_egress_bytes / 1e9
  axes.axhline(bound, color="black", linestyle="--", label="least possible for the busiest sender")
  axes.set(xlabel="rank", ylabel="GB", title="bytes of each rank")
  axes.legend()
