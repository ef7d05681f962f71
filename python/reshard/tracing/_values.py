# SPDX-License-Identifier: Apache-2.0
"""Random values of weights for proofs: the same each time, and other ones in each draw.

Among them are both signs, fractions, repeats, zeros, and values that no narrower dtype has. Large
tensors repeat a tile whose length is a prime, so that no row of a usual length is another's copy.
"""

import math
import zlib
from typing import Any

import torch

from reshard.tracing._types import torch_dtype

_TILE = 1_048_573
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_WHOLE = (torch.float64, torch.float32, torch.bfloat16)


def values_of(tensor: Any, draw: int) -> torch.Tensor:
  """Values of a canonical tensor, in the shape in which a loader is given it."""
  shape, dtype = tuple(tensor.stored_shape), torch_dtype(tensor.dtype.name.upper())
  size = math.prod(shape)
  tile = _tile(zlib.crc32(tensor.name.encode()), min(size, _TILE), dtype, draw)
  if size > _TILE:
    tile = tile.view(torch.uint8).reshape(_TILE, -1).repeat(-(-size // _TILE), 1)[:size]
    tile = tile.reshape(-1).view(dtype)
  return tile.reshape(shape)


def _tile(seed: int, size: int, dtype: torch.dtype, draw: int) -> torch.Tensor:
  random = torch.Generator().manual_seed(2 * seed + draw)
  if dtype in _FLOATS:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(size, generator=random, dtype=wide)
    x *= torch.exp2(torch.randint(-5, 5, (size,), generator=random).to(wide))
    kind = torch.randint(0, 16, (size,), generator=random)
    if dtype in _WHOLE:  # beyond what float16 holds
      far = torch.exp2(torch.randint(-60, 60, (size,), generator=random).to(wide))
      x = torch.where(kind == 0, x * far, x)
    x = torch.where(kind == 1, x[:1], x)
    return torch.where(kind == 2, 0.0, x).to(dtype)
  same = torch.Generator().manual_seed(seed)
  raw = torch.randint(0, 256, (size * dtype.itemsize,), generator=same, dtype=torch.uint8)
  raw = raw + 85 * draw  # no byte is the same in two draws
  if dtype == torch.bool:
    return (raw & 1).to(torch.bool)
  values = raw.view(dtype)
  if dtype.is_floating_point:
    raw[values.float().isnan()] = 0x11
  return values
