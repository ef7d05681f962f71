# SPDX-License-Identifier: Apache-2.0
"""Random values of weights for proofs: the same each time, and other ones in each draw.

Among them are both signs, fractions, repeats, zeros, and values that no narrower dtype has. To make them takes most of the
time of a proof, so tensors of more than a few thousand elements combine two pools, which the process keeps, each from a place
that follows from the tensor's name. Smaller ones get values of their own, because a few of a pool may be equal by chance.
Tensors larger than a pool repeat it; its length is a prime, so that no row of a usual length is another's copy.
"""

import functools
import hashlib
import math
from typing import Any

import torch

from reshard.tracing._types import torch_dtype

_TILE = 1_048_573
_SMALL = 4096
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_WHOLE = (torch.float64, torch.float32, torch.bfloat16)


def values_of(tensor: Any, draw: int) -> torch.Tensor:
  """Values of a canonical tensor, in the shape in which a loader is given it."""
  shape, dtype = tuple(tensor.stored_shape), torch_dtype(tensor.dtype.name.upper())
  size = math.prod(shape)
  digest = hashlib.blake2b(tensor.name.encode(), digest_size=16).digest()
  places = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
  if size <= _SMALL:
    return _made(places[0] >> 2, size, dtype, draw).reshape(shape)
  tile = _from_pools(places, min(size, _TILE), dtype, draw)
  if size > _TILE:
    tile = tile.view(torch.uint8).reshape(_TILE, -1).repeat(-(-size // _TILE), 1)[:size]
    tile = tile.reshape(-1).view(dtype)
  return tile.reshape(shape)


def _from_pools(places: tuple[int, int], size: int, dtype: torch.dtype, draw: int) -> torch.Tensor:
  starts = [place % _TILE for place in places]
  if dtype in _FLOATS:
    values, signs = (_pool(which, dtype, draw)[at : at + size] for which, at in enumerate(starts))
    return torch.copysign(values, signs)
  first, second = (
    _pool(which, torch.uint8, 0)[at : at + _TILE].repeat(dtype.itemsize)[: size * dtype.itemsize]
    for which, at in enumerate(starts)
  )
  return _of_bytes(first ^ second, dtype, draw)


@functools.cache
def _pool(which: int, dtype: torch.dtype, draw: int) -> torch.Tensor:
  """_TILE values, followed by the same again: from each place of the first half, _TILE values follow."""
  if dtype == torch.uint8:
    same = torch.Generator().manual_seed(which)
    return torch.randint(0, 256, (_TILE,), generator=same, dtype=torch.uint8).repeat(2)
  return _floats(2 * which + draw, _TILE, dtype).repeat(2)


def _made(seed: int, size: int, dtype: torch.dtype, draw: int) -> torch.Tensor:
  if dtype in _FLOATS:
    return _floats(2 * seed + draw, size, dtype)
  same = torch.Generator().manual_seed(seed)
  raw = torch.randint(0, 256, (size * dtype.itemsize,), generator=same, dtype=torch.uint8)
  return _of_bytes(raw, dtype, draw)


def _floats(seed: int, size: int, dtype: torch.dtype) -> torch.Tensor:
  random = torch.Generator().manual_seed(seed)
  wide = torch.float64 if dtype == torch.float64 else torch.float32
  x = torch.randn(size, generator=random, dtype=wide)
  x *= torch.exp2(torch.randint(-5, 5, (size,), generator=random).to(wide))
  kind = torch.randint(0, 16, (size,), generator=random)
  if dtype in _WHOLE:  # beyond what float16 holds
    far = torch.exp2(torch.randint(-60, 60, (size,), generator=random).to(wide))
    x = torch.where(kind == 0, x * far, x)
  x = torch.where(kind == 1, x[:1], x)
  return torch.where(kind == 2, 0.0, x).to(dtype)


def _of_bytes(raw: torch.Tensor, dtype: torch.dtype, draw: int) -> torch.Tensor:
  raw = raw + 85 * draw  # no byte is the same in two draws
  if dtype == torch.bool:
    return (raw & 1).to(torch.bool)
  values = raw.view(dtype)
  if dtype.is_floating_point:
    raw[values.float().isnan()] = 0x11
  return values
