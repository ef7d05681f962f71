# SPDX-License-Identifier: Apache-2.0
"""What ranks were seen to hold, as the text of a layout file (docs/tracing.md)."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reshard.tracing._types import (
  Local,
  Part,
  RankTrace,
  TracingError,
  Weight,
  merged_dims,
  safetensors_name,
)


_PART = re.compile(r"(\d+)([^@>*]*)(?:@([\d,]+))?(?:>([\d,]+))?(?:\*([\d,]+))?")
_INTERVAL = re.compile(r"\[(\d+),(\d+)\)")


def read_part(text: str) -> Part:
  """A part from its text; `at`, `dims` and `steps` are empty where the text leaves them out."""
  found = _PART.fullmatch(text)
  if found is None:
    raise TracingError(f"'{text}' is no part of a layout")
  box = [(int(b), int(e)) for b, e in _INTERVAL.findall(found[2])]
  at, dims, steps = (tuple(map(int, x.split(","))) if x else () for x in found.groups()[2:])
  begin, end = tuple(b for b, _ in box), tuple(e for _, e in box)
  return Part(int(found[1]), begin, end, at, dims, steps)


def part_text(part: Part, rank: int) -> str:
  """A part as the file has it; `rank`: of the local tensor."""
  box = "x".join(f"[{b},{e})" for b, e in zip(part.begin, part.end, strict=True))
  text = f"{part.weight}{box}"
  if rank:
    text += "@" + ",".join(map(str, part.at))
  first = rank - len(part.dims)
  if any(k != first + i for i, k in enumerate(part.dims)):
    text += ">" + ",".join(map(str, part.dims))
  if any(step != 1 for step in part.steps):
    text += "*" + ",".join(map(str, part.steps))
  return text


def _local(local: Local) -> dict[str, Any]:
  local = local.placed()
  shape = list(local.index_shape)
  entry: dict[str, Any] = {"dtype": safetensors_name(local.dtype), "shape": shape}
  if merged := merged_dims(shape, local.shape):
    entry["merged"] = list(merged)
  if local.padding or local.untouched:
    entry["padded"] = True
  if local.casts:
    entry["casts"] = True
  if local.map != "identity":
    entry["map"] = local.map
  entry["parts"] = [part_text(part, len(shape)) for part in local.parts]
  return entry


def _rank_text(ranks: Iterable[int]) -> str:
  runs: list[list[int]] = []
  for rank in sorted(ranks):
    if runs and runs[-1][1] == rank - 1:
      runs[-1][1] = rank
    else:
      runs.append([rank, rank])
  return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def layout_text(
  name: str, weights: Sequence[Weight], traces: Mapping[int, RankTrace], omit: bool = True
) -> str:
  """The file. Equal local tensors of several ranks are one entry. `omit`: weights that no rank
  holds are omitted on purpose."""
  locals_: dict[tuple[str, str], list[int]] = {}
  held: set[int] = set()
  written: dict[int, str] = {}  # by id(): ranks may share what they hold
  for rank in sorted(traces):
    for local in traces[rank].locals.values():
      if id(local) not in written:
        held.update(part.weight for part in local.parts)
        written[id(local)] = json.dumps(_local(local))
      locals_.setdefault((local.name, written[id(local)]), []).append(rank)
  tensors = []
  for weight in weights:
    entry = {
      "name": weight.name,
      "dtype": safetensors_name(weight.dtype),
      "shape": list(weight.index_shape),
    }
    if merged := merged_dims(weight.index_shape, weight.shape):
      entry["merged"] = list(merged)
    tensors.append(entry)
  omitted = [w.name for i, w in enumerate(weights) if omit and i not in held]
  lines = [
    json.dumps({"name": local, "ranks": _rank_text(ranks)})[:-1] + ", " + entry[1:]
    for (local, entry), ranks in locals_.items()
  ]
  head = {"format": "reshard layout", "version": 1, "name": name, "ranks": _rank_text(traces)}
  return (
    json.dumps(head)[:-1]
    + ',\n"tensors": ['
    + ",\n".join(map(json.dumps, tensors))
    + '],\n"omitted": ['
    + ",\n".join(map(json.dumps, omitted))
    + '],\n"local_tensors": ['
    + ",\n".join(lines)
    + "]}\n"
  )
