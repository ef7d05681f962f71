# SPDX-License-Identifier: Apache-2.0
"""Predictions for a range of sizes, as rows, a table and a figure."""

from __future__ import annotations

import itertools
import os
import string
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

from reshard import _core
from reshard._errors import InvalidArgumentError
from reshard._units import human_bytes, human_seconds, table

__all__ = ["Sweep", "sweep"]

Routes = Literal["direct", "auto"]

#: Where the longest time is more than so many times the shortest, the axis of a plot is logarithmic.
_LINEAR = 20


class Sweep:
  """What sweep() found. `rows` are dicts, for pandas.DataFrame(found.rows); str(found) is a table."""

  def __init__(self, rows: list[dict[str, Any]], sizes: Sequence[str]) -> None:
    self.rows = rows
    self._sizes = list(sizes)

  def __len__(self) -> int:
    return len(self.rows)

  def __str__(self) -> str:
    names = [*self._sizes, "cluster", "routes"]
    lines = [[*names, "ranks", "moved", "predicted", "bound", "bound by"]]
    for row in self.rows:
      cells = [str(row[name]) for name in names]
      figures = (f"{row['ranks']:,}", human_bytes(row["bytes_total"]))
      times = [human_seconds(row[f"{what}_seconds"]) for what in ("predicted", "bound")]
      lines.append([*cells, *figures, *times, row["bound_by"]])
    return table(lines, "r" * len(self._sizes) + "ll" + "rrrr" + "l", title=True)

  def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
    """Seconds against the first size, a line for each combination of all else, and its bound dotted; by matplotlib.

    Returns the figure, and saves it if `path` is given. Raises ImportError without matplotlib.
    """
    try:
      from matplotlib.figure import Figure
    except ImportError as error:
      raise ImportError("a plot of a sweep needs matplotlib: pip install matplotlib") from error
    figure: Any = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    first, rest = self._sizes[0], [*self._sizes[1:], "cluster", "routes"]
    told = [name for name in rest if len({row[name] for row in self.rows}) > 1]
    lines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in self.rows:
      lines.setdefault(tuple(row[name] for name in rest), []).append(row)
    for key, rows in lines.items():
      of = dict(zip(rest, key, strict=True))
      label = ", ".join(f"{name} {of[name]}" for name in told) or "predicted"
      at = [row[first] for row in rows]
      (line,) = axes.plot(at, [row["predicted_seconds"] for row in rows], marker="o", label=label)
      axes.plot(at, [row["bound_seconds"] for row in rows], linestyle=":", color=line.get_color())
    numbers = {row[first] for row in self.rows}
    if all(isinstance(number, int | float) and number > 0 for number in numbers) and max(numbers) > 4 * min(numbers):
      axes.set_xscale("log", base=2)
      axes.set_xticks(sorted(numbers), [str(number) for number in sorted(numbers)])
    axes.set(xlabel=first, ylabel="seconds", title="predicted, and dotted the bound")
    seconds = [row["predicted_seconds"] for row in self.rows]
    if max(seconds) > _LINEAR * min(seconds) > 0:
      axes.set_yscale("log")
    else:
      axes.set_ylim(0, None)
    axes.legend()
    if path is not None:
      figure.savefig(path)
    return figure


def sweep(
  model: _core.Model,
  source: str,
  target: str,
  cluster: Any,
  *,
  routes: Routes | Sequence[Routes] = "direct",
  only: str | Iterable[str] = (),
  **sizes: Sequence[Any],
) -> Sweep:
  """Predicts a refit for every combination of sizes.

      found = reshard.sweep(model, "megatron:tp=8", "vllm:tp=8,replicas={replicas},offset=8", "dgx-h100-400g",
                            routes=("direct", "auto"), replicas=(1, 2, 4, 8))
      print(found)
      found.plot("replicas.png")

  source, target  notations of layouts, with {name} where a size belongs; braces may hold sums and products
                  of sizes and numbers, such as {tp*replicas}
  cluster         as for Plan.simulate(), or a list of several
  routes          as for Plan.simulate(), or a list of several
  only            as for plan()
  sizes           the values of each name, in order

  Raises InvalidArgumentError for a name in braces that has no sizes, or a size that no notation names;
  what layout(), plan() and Plan.simulate() raise, with the combination as a note.
  """
  named = _names_in(source) | _names_in(target)
  if named != set(sizes) or not sizes:
    missing, unused = sorted(named - set(sizes)), sorted(set(sizes) - named)
    what = f"no sizes for {{{missing[0]}}}" if missing else f"no notation has {{{unused[0]}}}" if unused else "no sizes"
    raise InvalidArgumentError(f"sweep: {what}")
  clusters = list(cluster) if isinstance(cluster, list | tuple) else [cluster]
  modes = cast("list[Routes]", [routes] if isinstance(routes, str) else list(routes))
  rows: list[dict[str, Any]] = []
  for values in itertools.product(*sizes.values()):
    of = dict(zip(sizes, values, strict=True))
    try:
      plan = _core.plan(
        _core.layout(_filled(source, of), model), _core.layout(_filled(target, of), model), only=only
      )
      for place, mode in itertools.product(clusters, modes):
        rows.append(of | _row(plan, plan.simulate(place, routes=mode), mode))
    except Exception as error:
      note = ", ".join(f"{name}={value}" for name, value in of.items())
      if hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(f"in sweep() at {note}")
      raise
  return Sweep(rows, list(sizes))


def _row(plan: _core.Plan, found: _core.Prediction, mode: str) -> dict[str, Any]:
  return {
    "cluster": found.cluster,
    "routes": mode,
    "ranks": plan.num_ranks,
    "bytes_total": plan.bytes_total,
    "predicted_seconds": found.predicted_seconds,
    "bound_seconds": found.bound_seconds,
    "bound_by": found.bound_by,
    "relays": found.relays,
  }


def _parts(text: str) -> list[tuple[str, str | None]]:
  try:
    return [(before, name) for before, name, _, _ in string.Formatter().parse(text)]
  except ValueError as error:
    raise InvalidArgumentError(f"sweep: '{text}': {error}") from None


def _terms(expression: str) -> list[list[str]]:
  """Sums of products: [[factor]]."""
  return [[factor.strip() for factor in term.split("*")] for term in expression.split("+")]


def _names_in(text: str) -> set[str]:
  names = set()
  for _, expression in _parts(text):
    for factors in _terms(expression) if expression is not None else ():
      for factor in factors:
        if not factor.isidentifier() and not factor.isdecimal():
          raise InvalidArgumentError(f"sweep: '{{{expression}}}': only names and numbers, with + and *")
        names |= {factor} if factor.isidentifier() else set()
  return names


def _filled(text: str, of: dict[str, Any]) -> str:
  out = ""
  for before, expression in _parts(text):
    out += before
    if expression is not None:
      out += str(of[expression]) if expression in of else str(_sum(_terms(expression), of))
  return out


def _sum(terms: list[list[str]], of: dict[str, Any]) -> int:
  total = 0
  for factors in terms:
    product = 1
    for factor in factors:
      product *= int(factor) if factor.isdecimal() else of[factor]
    total += product
  return total
