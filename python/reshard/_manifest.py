# SPDX-License-Identifier: Apache-2.0
"""Models and layouts as JSON, so that trainers and workers can tell each other what they hold.

A rank describes its own local tensors: each is a list of boxes of the model's tensors and where
they lie. Nothing is executed to read a manifest; sizes and names are checked when the layout is
built of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import reshard
from reshard._collective import pack, unpack

__all__ = ["build", "describe", "describe_tensor", "model_of", "pack", "table_of", "unpack"]

Manifest = list[dict[str, Any]]


def table_of(model: reshard.Model, kept: Collection[str] | None = None) -> list[list[Any]]:
  """The tensors of a model, in its order: name, dtype, shape, and shape in a file. `kept`: only these."""
  return [
    [t.name, t.dtype.name, list(t.shape), list(t.stored_shape)]
    for t in model.tensors
    if kept is None or t.name in kept
  ]


def model_of(table: Sequence[Sequence[Any]], name: str = "trainer") -> reshard.Model:
  """The model of a `table_of()`. Errors: InvalidArgumentError for names, shapes and dtypes."""
  tensors: dict[str, tuple[Sequence[int], object]] = {}
  for entry in table:
    tensor, dtype, shape, _ = entry
    tensors[str(tensor)] = ([int(n) for n in shape], str(dtype))
  return reshard.Model.from_tensors(name, tensors)


def describe(layout: reshard.Layout, rank: int, table: Sequence[Sequence[Any]] | None = None) -> Manifest:
  """What one rank of a layout holds of a model's tensors.

  table  of the model, whose tensors are some of the layout's; by default all. Local tensors that only hold others
         are left out; of those that hold both, the others' elements are padding.
  """
  names = [t.name for t in layout.model.tensors] if table is None else [entry[0] for entry in table]
  numbers = {name: i for i, name in enumerate(names)}
  held = ((t, describe_tensor(t, numbers, t.index_shape)) for t in layout.local(rank))
  return [entry for t, entry in held if entry["parts"] or not t.fragments]


def build(
  name: str, model: reshard.Model, ranks: Mapping[int, Manifest], omit: bool = False
) -> reshard.Layout:
  """The layout in which each rank holds what its manifest says.

  omit  tensors of the model that no rank holds are left out on purpose.
  """
  names = [t.name for t in model.tensors]
  builder = reshard.LayoutBuilder(name, model)
  builder.add_ranks(list(ranks))
  held: set[int] = set()
  for members, manifest in _alike(ranks):
    for entry in manifest:
      parts = [_placed(names, part) for part in entry["parts"]]
      held.update(int(part["tensor"]) for part in entry["parts"])
      builder.add(
        members,
        entry["name"],
        entry["shape"],
        entry["dtype"],
        parts=parts,
        padded=bool(entry["padded"]),
        map=entry["map"],
        casts=True,
      )
  if omit:
    for number, tensor in enumerate(names):
      if number not in held:
        builder.omit(tensor)
  return builder.finish()


def _alike(ranks: Mapping[int, Manifest]) -> list[tuple[list[int], Manifest]]:
  """Ranks that hold the same, and what."""
  groups: dict[str, tuple[list[int], Manifest]] = {}
  for rank, manifest in sorted(ranks.items()):
    key = json.dumps(manifest, separators=(",", ":"))
    groups.setdefault(key, ([], manifest))[0].append(rank)
  return list(groups.values())


def describe_tensor(tensor: Any, numbers: Mapping[str, int], shape: Sequence[int]) -> dict[str, Any]:
  """The entry of a local tensor, divided by `shape`. `numbers`: of the tensors in the table.

  Raises UnsupportedError for parts that do not run along dimensions of the shape.
  """
  shape = list(shape)
  known = [f for f in tensor.fragments if f.tensor in numbers]
  return {
    "name": tensor.name,
    "shape": shape,
    "module_shape": list(tensor.shape),
    "dtype": tensor.dtype.name,
    "map": tensor.map,
    "padded": tensor.padding > 0 or len(known) < len(tensor.fragments),
    "parts": [_describe_part(f, shape, numbers) for f in known],
  }


def _describe_part(
  fragment: Any, shape: Sequence[int], numbers: Mapping[str, int]
) -> dict[str, Any]:
  pairs = [list(interval) for interval in fragment.box]
  strides = [1] * len(shape)
  for i in range(len(shape) - 2, -1, -1):
    strides[i] = strides[i + 1] * shape[i + 1]
  rest, at = fragment.offset, []
  for size in strides:
    at.append(rest // size)
    rest %= size
  dims, gaps = _dims(pairs, list(fragment.strides), shape, strides)
  return {"tensor": numbers[fragment.tensor], "box": pairs, "at": at, "dims": dims, "gaps": gaps}


def _dims(
  box: Sequence[Sequence[int]],
  strides: Sequence[int],
  shape: Sequence[int],
  of_shape: Sequence[int],
) -> tuple[list[int], list[int]]:
  """Which dimension of the local tensor each dimension of a box runs along, and the elements of it
  that are skipped between neighbours."""
  dims, gaps = [-1] * len(box), [0] * len(box)
  free = list(range(len(shape)))
  for i, (begin, end) in enumerate(box):
    if end - begin == 1:
      continue
    for j in free:
      step, left = divmod(strides[i], of_shape[j])
      if left == 0 and 0 < step and (end - begin - 1) * step < shape[j]:
        dims[i], gaps[i] = j, step - 1
        free.remove(j)
        break
    else:
      raise reshard.UnsupportedError(
        f"strides {list(strides)} of a box do not run along dimensions of {list(shape)}"
      )
  for i, dim in enumerate(dims):  # of one element: they run along any dimension that is left
    if dim < 0:
      dims[i] = free.pop(0) if free else -1
  return dims, gaps


def _placed(names: Sequence[str], part: Mapping[str, Any]) -> reshard.PlacedBox:
  number = int(part["tensor"])
  if not 0 <= number < len(names):
    raise reshard.InvalidArgumentError(f"a manifest names tensor {number} of {len(names)}")
  box = [(int(begin), int(end)) for begin, end in part["box"]]
  return reshard.PlacedBox(names[number], box, part["at"], dims=part["dims"], gaps=part["gaps"])
