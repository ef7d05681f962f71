# SPDX-License-Identifier: Apache-2.0
"""The comparison of two models, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from reshard.check._report import Difference, Report
from reshard.check._rules import Rules
from reshard.check._walk import MISSING, PLAIN, Place, Walk

__all__ = ["Found", "compare", "differing", "same", "says"]


@dataclass
class Found:
  """A place where two models differ: both values; of an alias, what shares the memory."""

  place: Place
  ours: Any
  fresh: Any
  alias: str = ""


class _Aliases:
  """Which places share memory, in one model."""

  def __init__(self) -> None:
    self._first: dict[int, str] = {}
    self._kept: list[torch.Tensor] = []  # so that no address comes again

  def first(self, path: str, tensor: torch.Tensor) -> str:
    """The first place with this memory."""
    if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.is_meta:
      return path
    self._kept.append(tensor)
    return self._first.setdefault(tensor.untyped_storage().data_ptr(), path)


def compare(ours: torch.nn.Module, fresh: torch.nn.Module, rules: Rules) -> tuple[Report, list[Found]]:
  """Compares an engine's model with a fresh one. The report has no differences yet: what was found may be memory that
  nothing sets."""
  report, found = Report(), []
  mine, other = _Aliases(), _Aliases()

  def visit(place: Place, a: Any, b: Any) -> None:
    if a is MISSING and b is MISSING:
      return
    report.compared[place.kind] += 1
    if not same(a, b):
      found.append(Found(place, a, b))
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
      return
    if _is_one(a, b):
      report.shared.append(place.path)
      return
    report.bytes += b.nbytes
    if place.kind == "native":
      return
    shares = mine.first(place.path, a), other.first(place.path, b)
    report.compared["alias"] += shares[1] != place.path
    if shares[0] != shares[1]:
      found.append(Found(Place(place.module, place.owner, place.attribute, "alias"), *shares, alias=place.path))

  walk = Walk(rules, visit)
  walk.models(ours, fresh)
  report.ignored, report.served = walk.ignored, walk.served
  return report, found


def _is_one(ours: torch.Tensor, fresh: torch.Tensor) -> bool:
  """True if both are in the same memory."""
  if any(t.layout != torch.strided or t.numel() == 0 or t.is_meta for t in (ours, fresh)):
    return False
  return ours.untyped_storage().data_ptr() == fresh.untyped_storage().data_ptr()


def same(ours: Any, fresh: Any) -> bool:
  """True if both are the same to a kernel: dtype, shape, strides and every bit."""
  if isinstance(ours, torch.Tensor) and isinstance(fresh, torch.Tensor):
    return not _form(ours, fresh) and not bool(differing(ours, fresh).any())
  if isinstance(ours, torch.Tensor) or isinstance(fresh, torch.Tensor):
    return False
  return bool(type(ours) is type(fresh) and (ours == fresh or (ours != ours and fresh != fresh)))


def differing(ours: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
  """For each byte of two tensors of one form, in the order of elements, whether it differs."""
  if ours.is_meta or fresh.is_meta:
    return torch.tensor([ours.is_meta != fresh.is_meta])
  if ours.layout != torch.strided:
    return torch.tensor([not torch.equal(ours.to_dense(), fresh.to_dense())])
  return _bytes(ours) != _bytes(fresh)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
  return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def _form(ours: torch.Tensor, fresh: torch.Tensor) -> str:
  """How two tensors differ beside their elements; empty if they do not."""
  a, b = ([str(t.dtype).removeprefix("torch."), list(t.shape)] for t in (ours, fresh))
  if a != b:
    return f"{a[0]} {a[1]} instead of {b[0]} {b[1]}"
  if ours.layout != fresh.layout:
    return f"{ours.layout} instead of {fresh.layout}"
  if ours.layout == torch.strided and ours.numel() > 1 and ours.stride() != fresh.stride():
    return f"strides {list(ours.stride())} instead of {list(fresh.stride())}"
  return ""


def says(found: Found, step: str, rank: int, unset: torch.Tensor | None = None) -> Difference:
  """In words. `unset`: bytes that nothing sets, which do not count."""
  place = found.place
  return Difference(place.module, place.attribute, place.kind, _what(found, unset), step, rank)


def _what(found: Found, unset: torch.Tensor | None) -> str:
  ours, fresh = found.ours, found.fresh
  if found.place.kind == "alias":
    shared = (f"shares its memory with '{at}'" if at != found.alias else "has memory of its own" for at in (ours, fresh))
    return "{}; freshly loaded, it {}".format(*shared)
  if isinstance(ours, torch.Tensor) and isinstance(fresh, torch.Tensor):
    return _form(ours, fresh) or _elements(ours, fresh, unset)
  return f"{_name(ours)} instead of {_name(fresh)}"


def _name(value: Any) -> str:
  if isinstance(value, torch.Tensor):
    return f"a tensor {list(value.shape)}"
  if value is MISSING:
    return "nothing"
  return repr(value) if isinstance(value, PLAIN) else f"an object of {type(value).__name__}"


def _elements(ours: torch.Tensor, fresh: torch.Tensor, unset: torch.Tensor | None) -> str:
  wrong = differing(ours, fresh)
  if wrong.numel() != ours.numel() * ours.element_size():
    return "other elements"
  if unset is not None:
    wrong = wrong & ~unset
  at = wrong.view(-1, ours.element_size()).any(dim=1).nonzero().reshape(-1)
  first = int(at[0])
  index = [int(i) for i in torch.unravel_index(torch.tensor(first), ours.shape)]
  a, b = (t.detach().to("cpu").contiguous().reshape(-1)[first].item() for t in (ours, fresh))
  return f"{len(at)} of {ours.numel()} elements; {index} is {a} instead of {b}"
