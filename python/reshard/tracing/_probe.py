# SPDX-License-Identifier: Apache-2.0
"""The proof of a layout: load real values with the engine's own loader, and look."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from reshard import _core
from reshard.tracing._modules import built, named_tensors
from reshard.tracing._numbers import Load
from reshard.tracing._types import CONVERTIBLE, torch_dtype

_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
  "identity": lambda x: x,
  "negated_exp": lambda x: -torch.exp(x),
  "plus_one": lambda x: x + 1.0,
  "minus_one": lambda x: x - 1.0,
}


def _values(tensor: Any) -> torch.Tensor:
  """Random values of a canonical tensor, the same each time."""
  shape, dtype = tuple(tensor.stored_shape), torch_dtype(tensor.dtype.name.upper())
  random = torch.Generator().manual_seed(zlib.crc32(tensor.name.encode()))
  if dtype in CONVERTIBLE:
    return torch.randn(shape, generator=random).to(dtype)
  nbytes = dtype.itemsize
  for size in shape:
    nbytes *= size
  # Bytes of small positive numbers, in every format.
  raw = torch.randint(1, 64, (nbytes,), generator=random, dtype=torch.uint8)
  return raw.view(dtype).reshape(shape)


def _expected(fragment: Any, local: Any, tensor: Any) -> torch.Tensor:
  values = _values(tensor).reshape(tuple(tensor.shape))[fragment.box.slices]
  dtype = torch_dtype(local.dtype.name.upper())
  if dtype == values.dtype and local.map == "identity":
    return values
  return _MAPS[local.map](values.float()).to(dtype)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
  return tensor.contiguous().reshape(-1).view(torch.uint8)


def _differences(module: torch.nn.Module, layout: _core.Layout, rank: int) -> Iterator[str]:
  held = named_tensors(module)
  for local in layout.local(rank):
    tensor = held.get(local.name)
    if tensor is None or tuple(tensor.shape) != tuple(local.shape):
      found = "nothing" if tensor is None else f"shape {list(tensor.shape)}"
      yield f"rank {rank}: '{local.name}': {list(local.shape)}, but the engine has {found}"
      continue
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    for fragment in local.fragments:
      canonical = layout.tensors[fragment.tensor]
      expected = _expected(fragment, local, canonical)
      there = flat.as_strided([e - b for b, e in fragment.box], tuple(fragment.strides), fragment.offset)
      if not torch.equal(_bytes(there), _bytes(expected)):
        yield f"rank {rank}: '{local.name}': other values than {fragment!r}"
        break


def probe(
  layout: _core.Layout,
  build: Callable[[int], Any],
  load: Load,
  ranks: Iterable[int] | None = None,
) -> list[str]:
  """Compares a layout with what the engine's loader does to random values, byte by byte.

  `build` and `load` as of traced(); modules are built on the CPU with their own dtypes. `ranks`: by
  default all of the layout. Returns what differs, a line each; empty if nothing does. Padding is
  not compared. Memory: a rank's module and one weight, as the loader needs them.
  """
  said: list[str] = []
  for rank in layout.ranks if ranks is None else ranks:
    with built(build, rank, "cpu") as module, torch.no_grad():
      load(module, ((t.name, _values(t)) for t in layout.tensors))
      said += _differences(module, layout, rank)
  return said
