# SPDX-License-Identifier: Apache-2.0
"""Whether a rank gets the elements that it is said to hold: a comparison with values."""

from collections.abc import Iterable, Mapping

import torch

import reshard
from reshard.learn.fitting.evidence import Held
from reshard.learn.learner import NoCard
from reshard.tracing._types import torch_dtype

Tensors = Mapping[str, torch.Tensor]


def random_tensors(model: reshard.Model) -> Tensors:
  """The tensors of a model with values that all of the dtypes have which weights may be stored in."""
  generator = torch.Generator().manual_seed(1)
  return {
    t.name: torch.randn(t.shape, generator=generator).bfloat16().to(torch_dtype(t.dtype.name.upper())) for t in model.tensors
  }


def check_shards(held: Iterable[Held], found: Tensors, tensors: Tensors, rank: int) -> None:
  """Raises NoCard for a local tensor of a rank that is said to hold other elements than it gets."""
  for one in held:
    if one.map != "identity" or one.name not in found:
      continue
    said, got = _filled(one, tensors), found[one.name].float().reshape(-1)
    if got.numel() != said.numel() or not torch.equal(got[~said.isnan()], said[~said.isnan()]):
      raise NoCard(f"rank {rank}: '{one.name}' is cut otherwise than Megatron-Bridge cuts it")


def _filled(held: Held, tensors: Tensors) -> torch.Tensor:
  """The elements of a local tensor, row by row; NaN for padding."""
  out = torch.full(held.shape, torch.nan)
  for piece in held.pieces:
    box = tensors[piece.tensor][tuple(map(slice, piece.begin, piece.end))].float()
    place = [slice(at, at + 1) for at in piece.at]
    for size, dim in zip(box.shape, piece.dims, strict=True):
      place[dim] = slice(piece.at[dim], piece.at[dim] + size)
    order = sorted(range(box.ndim), key=lambda i: piece.dims[i])
    out[tuple(place)] = box.permute(order).reshape(out[tuple(place)].shape)
  return out.reshape(-1)
