# SPDX-License-Identifier: Apache-2.0
"""What an engine may change after it has loaded its weights, and whether its memory is there.

A worker's layout is learned when a trainer joins. Each update asks again, before any byte moves.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

__all__ = ["difference", "digest", "experts_of", "unmapped"]

_MAPPED = 13  # CU_POINTER_ATTRIBUTE_MAPPED
_SUCCESS, _INVALID_VALUE = 0, 1


def digest(value: Any) -> str:
  """Equal for equal values; anything that JSON takes."""
  return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def experts_of(model: torch.nn.Module) -> dict[str, Any]:
  """Where a worker has which experts: the maps that its layers keep of them, by the layer's name."""
  found: dict[str, Any] = {}
  for name, module in model.named_modules():
    for attribute in ("expert_map", "_expert_map"):
      value = getattr(module, attribute, None)
      if isinstance(value, torch.Tensor) and not value.is_meta:
        found[name] = value.tolist()
  return found


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
  """What of a worker's state is not what it was; empty if all is."""
  return ", ".join(key for key in sorted({*before, *now}) if before.get(key) != now.get(key))


def unmapped(tensors: Iterable[tuple[str, torch.Tensor]], is_mapped: Callable[[int], bool] | None = None) -> str:
  """The name of a tensor whose memory the engine has given back while it sleeps; empty if there is none.

  vLLM's sleep mode and SGLang's memory saver leave a tensor its address and take the memory behind it.

  is_mapped  of an address; None: as the CUDA driver says
  """
  mapped = is_mapped or _is_mapped
  for name, tensor in tensors:
    if tensor.numel() > 0 and tensor.device.type == "cuda" and not mapped(tensor.data_ptr()):
      return name
  return ""


def _is_mapped(address: int) -> bool:
  """True if memory is behind an address of a GPU, or if nobody can say."""
  attribute = _pointer_attribute()
  if attribute is None:
    return True
  answer = ctypes.c_int(1)
  status = attribute(ctypes.byref(answer), _MAPPED, ctypes.c_uint64(address))
  return status not in (_SUCCESS, _INVALID_VALUE) or (status == _SUCCESS and answer.value != 0)


@functools.cache
def _pointer_attribute() -> Callable[..., int] | None:
  """The CUDA driver's cuPointerGetAttribute."""
  if torch.version.hip is not None:
    return None
  try:
    return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
  except (OSError, AttributeError):
    return None
