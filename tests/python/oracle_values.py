# SPDX-License-Identifier: Apache-2.0
"""Stored values that are not the checkpoint's bits: casts, norms with one added or taken away, and
Mamba's A = -exp(A_log). Arithmetic is float's, then rounded to nearest even."""

import numpy as np

from oracle_tensor import Tensor

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}

# Bits of the fraction, the leading one included: two neighbours differ by 2^-(bits - 1) at 1.
PRECISION_BITS = {"F32": 24, "BF16": 8, "F16": 11}


def to_float(tensor):
  """The values as an array of float32."""
  if tensor.dtype == "BF16":
    return (tensor.data.astype(np.uint32) << 16).view(np.float32)
  if tensor.dtype == "F16":
    return np.ascontiguousarray(tensor.data).view(np.float16).astype(np.float32)
  assert tensor.dtype == "F32", tensor.dtype
  return np.ascontiguousarray(tensor.data).view(np.float32)


def from_float(values, dtype):
  """Float values rounded to nearest even and stored as `dtype`."""
  values = np.ascontiguousarray(values, dtype=np.float32)
  if dtype == "F32":
    return Tensor(dtype, values.view(np.uint32))
  if dtype == "F16":
    return Tensor(dtype, values.astype(np.float16).view(np.uint16))
  bits = values.view(np.uint32).astype(np.uint64)
  rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
  return Tensor(dtype, rounded.astype(np.uint16))


def is_float(tensor):
  return tensor.dtype in PRECISION_BITS


def cast(tensor, dtype):
  """The same values as `dtype`; what is not a floating-point number stays."""
  if tensor is None or not is_float(tensor) or tensor.dtype == dtype:
    return tensor
  return from_float(to_float(tensor), dtype)


def add(tensor, amount):
  """Every value plus `amount`, in the tensor's own dtype."""
  if tensor is None or amount == 0 or not is_float(tensor):
    return tensor
  return from_float(to_float(tensor) + np.float32(amount), tensor.dtype)


def negated_exp(tensor):
  """-exp(x) as F32."""
  if not is_float(tensor):
    return tensor
  return from_float(-np.exp(to_float(tensor).astype(np.float64)), "F32")


def steps_apart(one, other):
  """How many representable numbers two arrays of bits of equal signs are apart, at most."""
  if one.size == 0:
    return 0
  return int(np.abs(one.astype(np.int64) - other.astype(np.int64)).max())


def settle(expected, held):
  """`expected` with what `held` has in the place of a Mamba mixer's A, where both are one step
  apart at most: libraries round the last bit of an exponential as they like."""
  settled = dict(expected)
  for name, want in expected.items():
    have = held.get(name)
    if not name.endswith(".mixer.A") or have is None or have.data.shape != want.data.shape:
      continue
    if want.dtype == have.dtype and steps_apart(want.data, have.data) <= 1:
      settled[name] = have
  return settled
