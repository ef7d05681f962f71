# SPDX-License-Identifier: Apache-2.0
"""Whole tensors as numpy arrays of bit patterns, and the handful of slices the layout rules need.

A bf16 weight is an array of uint16, an fp32 weight one of uint32, and so on: nothing here does
arithmetic on values, so equality is equality of bits and a dtype numpy lacks does no harm.
"""

from typing import NamedTuple

import numpy as np
import safetensors

_WIDTH_BYTES = {
  "BOOL": 1,
  "U8": 1,
  "I8": 1,
  "F8_E4M3": 1,
  "F8_E5M2": 1,
  "F8_E8M0": 1,
  "U16": 2,
  "I16": 2,
  "F16": 2,
  "BF16": 2,
  "U32": 4,
  "I32": 4,
  "F32": 4,
  "U64": 8,
  "I64": 8,
  "F64": 8,
}


class Tensor(NamedTuple):
  """A dtype as safetensors writes it ("BF16"), and the array."""

  dtype: str
  data: np.ndarray


def read_tensors(path):
  """Every tensor of a safetensors file, by name, with the format's own package as the reader."""
  with open(path, "rb") as file:
    entries = safetensors.deserialize(file.read())
  tensors = {}
  for name, entry in entries:
    width = _WIDTH_BYTES[entry["dtype"]]
    bits = np.frombuffer(bytes(entry["data"]), dtype=f"<u{width}")
    tensors[name] = Tensor(entry["dtype"], bits.reshape(entry["shape"]))
  return tensors


def rows(tensor, start, stop):
  """Rows [start, stop) of dimension 0, all of which must exist."""
  assert 0 <= start <= stop <= tensor.data.shape[0], (start, stop, tensor.data.shape)
  return Tensor(tensor.dtype, tensor.data[start:stop])


def row_shard(tensor, index, count):
  """The index-th of `count` equal runs of rows (a column-parallel weight or bias)."""
  length, rest = divmod(tensor.data.shape[0], count)
  assert rest == 0, f"{tensor.data.shape[0]} rows do not divide by {count}"
  return rows(tensor, index * length, (index + 1) * length)


def column_shard(tensor, index, count):
  """The index-th of `count` equal runs of columns (a row-parallel weight)."""
  length, rest = divmod(tensor.data.shape[1], count)
  assert rest == 0, f"{tensor.data.shape[1]} columns do not divide by {count}"
  return Tensor(tensor.dtype, tensor.data[:, index * length : (index + 1) * length])


def concatenate(tensors):
  """All of them one below the other."""
  return Tensor(_common_dtype(tensors), np.concatenate([t.data for t in tensors], axis=0))


def stack(tensors):
  """All of them along a new leading dimension."""
  return Tensor(_common_dtype(tensors), np.stack([t.data for t in tensors], axis=0))


def pad_rows(tensor, length):
  """Zero rows appended until there are `length`."""
  assert length >= tensor.data.shape[0]
  padding = np.zeros((length - tensor.data.shape[0], *tensor.data.shape[1:]), tensor.data.dtype)
  return Tensor(tensor.dtype, np.concatenate([tensor.data, padding], axis=0))


def round_up(length, multiple):
  """The least multiple of `multiple` that is not below `length`."""
  return (length + multiple - 1) // multiple * multiple


def difference(expected, got):
  """What is wrong with `got`, as lines of text; empty when names, shapes, dtypes and bits agree."""
  lines = [f"missing: {name}" for name in expected if name not in got]
  lines += [f"unexpected: {name}" for name in got if name not in expected]
  for name in sorted(expected.keys() & got.keys()):
    want, have = expected[name], got[name]
    if want.dtype != have.dtype:
      lines.append(f"{name}: dtype {have.dtype}, not {want.dtype}")
    elif want.data.shape != have.data.shape:
      lines.append(f"{name}: shape {have.data.shape}, not {want.data.shape}")
    elif not np.array_equal(want.data, have.data):
      wrong = np.argwhere(want.data != have.data)
      lines.append(
        f"{name}: {len(wrong)} of {want.data.size} elements differ, "
        f"the first at {tuple(wrong[0].tolist())}"
      )
  return lines


def _common_dtype(tensors):
  dtypes = {t.dtype for t in tensors}
  assert len(dtypes) == 1, f"tensors of different dtypes in one: {dtypes}"
  return dtypes.pop()
