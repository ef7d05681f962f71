# SPDX-License-Identifier: Apache-2.0
"""The table of checks: small models of an engine's classes, updated as a live engine is, compared with fresh loads.

Each class: a small model is loaded with values A. Then, once by reshard and once by the engine's own reload, it is updated to
values B, and back to A, and checked each time.
"""

from __future__ import annotations

import multiprocessing
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from reshard.check._fresh import CONSTRUCTOR
from reshard.check._report import Report

__all__ = ["HEAD", "Row", "line_of", "page", "places_of", "rows", "said", "summary", "tensors_of", "varied"]

#: What a row says in the end.
EQUAL, REPAIRED, WRONG, DIFFERS = "equal", "repaired by reshard", "wrong in the engine", "differs"
REFUSED, NOTHING, UNLOADED = "refused by reshard", "not built", "not in the checkpoint"
HEAD = "| class | format | experts | tensors | reshard | the engine's own reload | |\n| --- | --- | --- | --- | --- | --- | --- |"


@dataclass
class Row:
  """One class in one format.

  experts  the back end of its experts; "" if it has none
  tensors  how many were compared, and of `shared` ones not
  ours     the places that differ after updates by reshard, with # for numbers; theirs: after the engine's own reload
  unloaded places of parameters that no step of a fresh load sets: the checkpoint lacks them
  error    why the engine does not build the model here; `update`, `reload`: why an update by reshard, or the engine's own reload, failed
  """

  name: str
  format: str
  experts: str = ""
  tensors: int = 0
  shared: int = 0
  ours: list[str] = field(default_factory=list)
  theirs: list[str] = field(default_factory=list)
  unloaded: list[str] = field(default_factory=list)
  error: str = ""
  update: str = ""
  reload: str = ""

  @property
  def verdict(self) -> str:
    """What the row says."""
    if self.error:
      return NOTHING
    if self.update:
      return REFUSED if self.update.startswith("UnsupportedError") else DIFFERS
    if self.ours:
      if set(self.ours) <= set(self.unloaded):
        return UNLOADED
      return WRONG if set(self.ours) <= set(self.theirs) else DIFFERS
    return REPAIRED if self.theirs or self.reload else EQUAL


def line_of(row: Row) -> str:
  """A line of the table."""
  if row.error:
    return f"| {row.name} | {row.format} | | | | | {NOTHING}: {row.error} |"
  cells = (f"fails: {error}" if error else _listed(places) for error, places in ((row.update, row.ours), (row.reload, row.theirs)))
  return f"| {row.name} | {row.format} | {row.experts} | {row.tensors}{f', {row.shared} not' * (row.shared > 0)} | {' | '.join(cells)} | {row.verdict} |"


def summary(rows: Sequence[Row]) -> str:
  """How many rows say what."""
  counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in (EQUAL, REPAIRED, WRONG, DIFFERS, REFUSED, UNLOADED, NOTHING)}
  return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def page(engine: str, rows: Sequence[Row]) -> str:
  """The table as a page of docs/. Of a class that the engine builds in another format, it leaves out those that it does not build."""
  shown = {row.name: row.format for row in reversed(rows)} | {row.name: "" for row in rows if not row.error}
  rows = [row for row in rows if not row.error or row.format == shown[row.name]]
  lines = [
    "<!-- SPDX-License-Identifier: Apache-2.0 -->",
    "<!-- Made by python -m reshard.check table: do not edit. -->",
    f"# Checks of {engine}",
    "",
    f"{len(rows)} rows: {summary(rows)}. On a CPU, one rank, small models with random values. Each cell says what differs from a",
    "fresh load after an update to other values, and after one back; [check.md](check.md) explains the columns.",
    "",
    HEAD,
    *map(line_of, rows),
  ]
  return "\n".join(lines) + "\n"


def _listed(places: Sequence[str]) -> str:
  return ", ".join(f"`{place}`" for place in places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "") or EQUAL


def places_of(report: Report, unloaded: bool = False) -> list[str]:
  """The places that differ, each kind once: # stands for a number. `unloaded`: only parameters that no step of a fresh load sets."""
  found = (one for one in report.differences if not unloaded or (one.kind == "parameter" and one.step.startswith(CONSTRUCTOR)))
  return list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "#", one.path) for one in found))


def varied(folder: pathlib.Path, out: pathlib.Path, seed: int) -> pathlib.Path:
  """A copy of a checkpoint in which every number that training changes has another random value."""
  shutil.copytree(folder, out)
  generator = torch.Generator().manual_seed(seed)
  for path in sorted(out.glob("*.safetensors")):
    tensors = load_file(path)
    for name, tensor in tensors.items():
      if tensor.is_floating_point():
        tensors[name] = (torch.randn(tensor.shape, generator=generator) * 0.1 + 0.5).to(tensor.dtype)
    save_file(tensors, path, metadata={"format": "pt"})
  return out


def tensors_of(folder: pathlib.Path) -> dict[str, torch.Tensor]:
  """A checkpoint's tensors, by name."""
  return {name: t for path in sorted(folder.glob("*.safetensors")) for name, t in load_file(path).items()}


def rows(names: Sequence[str], formats: Sequence[str], one: Callable[[str, str, pathlib.Path], Row]) -> Any:
  """Yields the row of each class in each format. `one` makes it, in a process of its own and an empty folder."""
  for name in names:
    for format in formats:
      with tempfile.TemporaryDirectory(prefix="reshard-check-") as work:
        yield _apart(one, name, format, pathlib.Path(work))


def _apart(one: Callable[[str, str, pathlib.Path], Row], name: str, format: str, work: pathlib.Path) -> Row:
  receive, send = multiprocessing.Pipe(duplex=False)

  def run() -> None:
    try:
      row = one(name, format, work)
    except BaseException as error:  # noqa: BLE001 - the row says it
      row = Row(name, format, error=said(error))
    send.send(asdict(row))

  process = multiprocessing.get_context("fork").Process(target=run)
  process.start()
  send.close()
  try:
    made: Mapping[str, Any] = receive.recv()
    return Row(**made)
  except EOFError:
    process.join()
    return Row(name, format, error=f"its process ended with {process.exitcode}")
  finally:
    process.join()


def said(error: BaseException) -> str:
  """An error in a cell."""
  text = " ".join(re.sub(r"\S*/reshard-check-[^/]+/", "", str(error)).split())[:160] or type(error).__name__
  return f"{type(error).__name__}: {text}".replace("|", "/")
