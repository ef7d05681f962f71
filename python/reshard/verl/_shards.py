# SPDX-License-Identifier: Apache-2.0
"""What verl's training engines hold, from their own description of it (`ShardSpec`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import reshard
import torch
from reshard.engines.stream import Piece, even_pieces
from reshard.live._placements import held_at
from reshard.tracing._types import safetensors_name

_CONVERTED = ("to_hf_chunk", "hf_slots", "place", "gather_group")


def engine_pieces(
  engine: Any, rank: int, size: int, plain: bool | None
) -> tuple[bool, Iterable[Piece]]:
  """What this actor sends of an engine, and whether these are its shards; else equal shares.

  plain  whether the engine's shards are parts of tensors under the names of the checkpoint, which is
         so of FSDP2 and not of what must be converted (Megatron, stacks of experts). None: not known.
  """
  if plain is None:
    plain = _is_plain(engine)
  if plain:
    return True, _pieces(engine.get_per_tensor_param_shard()[0], rank, size)
  return False, even_pieces(engine.get_per_tensor_param()[0], rank, size)


def _is_plain(engine: Any) -> bool:
  try:
    shards, _ = engine.get_per_tensor_param_shard()
  except (AttributeError, NotImplementedError):
    return False
  return all(getattr(spec, name, None) is None for _, _, spec in shards for name in _CONVERTED)


def _pieces(shards: Iterable[tuple[str, torch.Tensor, Any]], rank: int, size: int) -> Iterator[Piece]:
  for name, local, spec in shards:
    if spec.mesh is None:
      yield from even_pieces([(name, local.view(spec.full_shape))], rank, size)
      continue
    yield _piece(name, local, spec)


def _piece(name: str, local: torch.Tensor, spec: Any) -> Piece:
  shape = tuple(int(n) for n in spec.full_shape)
  at = spec.mesh.get_coordinate()
  if at is None:
    raise reshard.UnsupportedError(f"'{name}': this actor is not in the tensor's mesh")
  placed = spec.placements, tuple(spec.mesh.shape)
  held = held_at((name, name), safetensors_name(local.dtype), shape, placed, list(at))
  return Piece(held, local, shape)
