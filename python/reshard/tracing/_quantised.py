# SPDX-License-Identifier: Apache-2.0
"""Traced layouts of quantised engines, over the plain values of the model.

The loader of a quantised engine is given data and scales, as files hold them, and so is a trace.
Here the data's places become places of plain values, reshard quantises that layout as it does those
of the families, and the scales that this makes are compared with those that the loader placed.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import reshard
from reshard import _core
from reshard.tracing._text import part_text, read_part
from reshard.tracing._types import Part, TracingError, row_major

# Dtypes whose bits engines keep as bytes.
_BYTES = ("u8", "f8_e8m0")


def files_of(stored: _core.Layout) -> dict[str, tuple[tuple[int, ...], Any]]:
  """{name: (shape, dtype)} of what a loader is given, of a layout of whole tensors.

  Raises UnsupportedError for a layout that cuts them.
  """
  return {t.file_name: (tuple(t.file_shape), t.file_dtype) for t in _whole(stored).values()}


def _whole(stored: _core.Layout) -> dict[str, Any]:
  """{name of a file's tensor: local tensor}"""
  found: dict[str, Any] = {}
  for rank in stored.ranks:
    for local in stored.local(rank):
      shapes = [[(0, n) for n in stored.tensors[f.tensor].shape] for f in local.fragments]
      if [list(f.box) for f in local.fragments] != shapes or len(shapes) != 1 or local.padding:
        raise reshard.UnsupportedError(
          f"{stored.name}: '{local.name}' is not one whole tensor, as loaders are given them; trace "
          "with a layout 'hf:...', or with a checkpoint"
        )
      found.setdefault(local.file_name, local)
  return found


def values_of(text: str, stored: _core.Layout) -> _core.Layout:
  """The layout of plain values that a traced one (its text, over files_of(stored)) is."""
  return _core.explicit_layout(_Values(stored).text(json.loads(text)), stored.model)


def form_of(stored: _core.Layout) -> dict[str, Any]:
  """The arguments with which reshard.quantise_layout() makes what is stored so."""
  return {
    "format": stored.quant_format,
    "method": stored.quant_method,
    "tensors": stored.quant_tensors,
  }


def compose(values: _core.Layout, files: _core.Layout, stored: _core.Layout) -> _core.Layout:
  """The quantised layout, over the plain model of `stored`, that a traced one is.

  values  values_of() the traced layout
  files   the traced layout, over files_of(stored)
  stored  the layout of the checkpoint

  Raises TracingError, with the names, if the engine's scales are not those of its data.
  """
  made = reshard.quantise_layout(values, **form_of(stored))
  said = list(_differences(made, files, _whole(stored)))
  if said:
    raise TracingError(
      f"this engine does not hold {stored.quant_format} as reshard does, in {len(said)} places: "
      f"{'; '.join(said[:4])}; weights=reshard.tracing.stored_tensors(folder) traces its data and "
      "scales as tensors of their own"
    )
  return made


class _Values:
  """Turns the text of a layout of files into one of plain values."""

  def __init__(self, stored: _core.Layout) -> None:
    self.model = stored.model
    self.numbers = {t.name: i for i, t in enumerate(self.model.tensors)}
    self.quantised = set(stored.quant_tensors)
    #: By the name of a file's tensor: the tensor that it is, or is part of.
    self.tensor_of = {name: t.fragments[0].tensor for name, t in _whole(stored).items()}
    #: Elements of a number in the file: two of 4 bits in a byte.
    self.per_number = {}
    for name, local in _whole(stored).items():
      held, shape = tuple(local.file_shape), tuple(local.shape)
      packed = (*held[:-1], 2 * held[-1]) if held else held
      tensor = self.tensor_of[name]
      if tensor in self.numbers and tuple(self.model.tensors[tensor].shape) == shape:
        self.per_number[name] = 1 if held == shape else 2 if packed == shape else 0

  def text(self, files: dict[str, Any]) -> str:
    names = [t["name"] for t in files["tensors"]]
    entries = [self._local(entry, names) for entry in files["local_tensors"]]
    tensors = []
    for t in self.model.tensors:
      tensors.append({"name": t.name, "dtype": t.dtype.name.upper(), "shape": list(t.shape)})
      if t.shape != t.stored_shape:
        raise TracingError(
          f"'{t.name}' is indexed as {list(t.shape)}, and its file has {list(t.stored_shape)}: "
          "quantised layouts of such models are not composed"
        )
    omitted = [self.tensor_of[name] for name in files["omitted"]]
    return json.dumps(
      {
        **{key: files[key] for key in ("format", "version", "name", "ranks")},
        "tensors": tensors,
        "omitted": [name for name in omitted if name in self.numbers],
        "local_tensors": [entry for entry in entries if entry is not None],
      }
    )

  def _local(self, entry: dict[str, Any], names: list[str]) -> dict[str, Any] | None:
    """The local tensor of values; None if it holds scales."""
    parts = [read_part(part) for part in entry["parts"]]
    held = [names[part.weight] for part in parts]
    tensors = [self.tensor_of[name] for name in held]
    kinds = {(t in self.numbers, t in self.quantised) for t in tensors}
    if len(kinds) > 1:
      raise TracingError(f"'{entry['name']}' holds quantised tensors and others")
    if not parts or kinds == {(True, False)}:
      return entry | {"parts": self._renumbered(parts, tensors, entry)}
    if kinds == {(False, False)}:
      return None
    made = dict(entry)
    dtypes = {self.model.tensors[t].dtype.name.upper() for t in tensors}
    per_number = {self.per_number.get(name, 0) for name in held}
    if len(dtypes) > 1 or len(per_number) > 1 or 0 in per_number:
      raise TracingError(f"'{entry['name']}' holds {held[0]} in a form that is not composed")
    if per_number == {2}:
      parts = [self._unpacked(part, entry) for part in parts]
      made["shape"] = [*entry["shape"][:-1], 2 * entry["shape"][-1]]
    made["name"] = entry["name"].removesuffix("_packed")
    made["dtype"] = dtypes.pop()
    return made | {"parts": self._renumbered(parts, tensors, made)}

  def _renumbered(self, parts: list[Part], tensors: list[str], entry: dict[str, Any]) -> list[str]:
    rank = len(entry["shape"])
    out = []
    for part, tensor in zip(parts, tensors, strict=True):
      number = self.numbers[tensor]
      dims = part.dims or tuple(range(rank - len(part.begin), rank))
      steps = part.steps or (1,) * len(part.begin)
      out.append(part_text(Part(number, part.begin, part.end, part.at, dims, steps), rank))
    return out

  @staticmethod
  def _unpacked(part: Part, entry: dict[str, Any]) -> Part:
    last = len(entry["shape"]) - 1
    straight = not part.dims or part.dims[-1] == last
    if not straight or (part.steps and part.steps[-1] != 1) or entry.get("merged"):
      raise TracingError(f"'{entry['name']}' does not hold its 4-bit elements in rows")
    begin, end = ((*x[:-1], 2 * x[-1]) for x in (part.begin, part.end))
    return Part(part.weight, begin, end, (*part.at[:-1], 2 * part.at[-1]), part.dims, part.steps)


def _differences(
  made: _core.Layout, files: _core.Layout, whole: Mapping[str, Any]
) -> Iterator[str]:
  """What the engine holds otherwise than the composed layout says. The data are as traced; it is
  scales, names and shapes that are compared."""
  bases = _bases(made)
  stored_as = {name: t.fragments[0].tensor for name, t in whole.items()}
  plain = {t.name for t in made.model.tensors}
  for rank in made.ranks:
    there = {t.file_name: t for t in made.local(rank)}
    here = {t.name: t for t in files.local(rank)}
    for name in sorted(there.keys() ^ here.keys()):
      yield f"rank {rank}: '{name}' is only in {'reshard' if name in there else 'the engine'}"
    for name in there.keys() & here.keys():
      a, b = there[name], here[name]
      if _form(a.file_shape, a.file_dtype) != _form(b.shape, b.dtype):
        yield (
          f"rank {rank}: '{name}' is {b.dtype.name} {list(b.shape)} in the engine, "
          f"{a.file_dtype.name} {list(a.file_shape)} in reshard"
        )
      elif a.fragments and a.fragments[0].tensor not in plain:
        of_files = {n: (tuple(t.stored_shape), bases[stored_as[n]]) for n, t in _tensors(files, b)}
        of_made = {n: (tuple(t.shape), bases[n]) for n, t in _tensors(made, a)}
        if not np.array_equal(_numbers(a, of_made), _numbers(b, of_files)):
          yield f"rank {rank}: '{name}' has its scales elsewhere"


def _form(shape: tuple[int, ...], dtype: Any) -> tuple[list[int], str]:
  """Writers add and omit dimensions of one element."""
  return [n for n in shape if n != 1], "u8" if dtype.name in _BYTES else dtype.name


def _tensors(layout: _core.Layout, local: Any) -> Iterator[tuple[str, Any]]:
  for name in {f.tensor for f in local.fragments}:
    yield name, layout.tensors[name]


def _bases(layout: _core.Layout) -> dict[str, int]:
  """The number of each tensor's first element."""
  bases, next_one = {}, 0
  for t in layout.tensors:
    bases[t.name] = next_one
    next_one += math.prod(t.shape)
  return bases


def _numbers(
  local: Any, tensors: Mapping[str, tuple[tuple[int, ...], int]]
) -> npt.NDArray[np.int64]:
  """The number of the element that is at each place of a local tensor; -1 where there is none."""
  out = np.full(math.prod(local.shape), -1, dtype=np.int64)
  for f in local.fragments:
    shape, first = tensors[f.tensor]
    numbers = np.full((), first, dtype=np.int64)
    for (begin, end), stride in zip(f.box, row_major(shape), strict=True):
      numbers = numbers[..., np.newaxis] + np.arange(begin, end, dtype=np.int64) * stride
    steps = [8 * n for n in f.strides]
    there = np.lib.stride_tricks.as_strided(out[f.offset :], numbers.shape, steps, writeable=True)
    there[...] = numbers
  return out
