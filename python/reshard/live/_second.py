# SPDX-License-Identifier: Apache-2.0
"""Tensors that have a second name: tied parameters, and what state dicts make of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def same_tensor(tensor: Any) -> Hashable:
  """Equal for tensors that are one: the same object, or the same memory seen in the same way.

  state_dict() gives each name of a tied parameter a tensor object of its own.
  """
  local, seen = tensor, None
  if isinstance(tensor, DTensor):
    local, seen = tensor._local_tensor, (tensor.placements, tensor.device_mesh, tensor.shape)
  elif getattr(tensor, "_local_tensor", None) is not None:
    local, seen = tensor._local_tensor, tuple(tensor.shape)
  if not isinstance(local, torch.Tensor) or local.layout != torch.strided:
    return id(tensor)
  if local.is_meta or local.numel() == 0:  # no memory that could tell
    return id(tensor)
  return (local.device, local.data_ptr(), local.dtype, local.shape, local.stride(), seen)


def known_names(
  tensors: Mapping[str, Any], find: Callable[[str], str | None], known: Callable[[str], bool]
) -> Callable[[str], str | None]:
  """`find`, which says what tensors are called, for tensors that have a name more than is known.

  A name that is not known is that of a tensor that is the same under one that is. A shard without
  elements cannot tell, and is taken for any of the same shape: nothing of it moves.
  """
  names: dict[Hashable, str] = {}
  empty: dict[Hashable, str] = {}
  for name, tensor in tensors.items():
    whole = find(name)
    if whole is not None and known(whole):
      names.setdefault(same_tensor(tensor), whole)
      if isinstance(tensor, DTensor) and tensor._local_tensor.numel() == 0:
        empty.setdefault((tensor.shape, tensor.placements), whole)

  def found(name: str) -> str | None:
    whole, tensor = find(name), tensors.get(name)
    if whole is None or known(whole) or tensor is None:
      return whole
    if isinstance(tensor, DTensor) and tensor._local_tensor.numel() == 0:
      return empty.get((tensor.shape, tensor.placements), whole)
    return names.get(same_tensor(tensor), whole)

  return found
