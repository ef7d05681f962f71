# SPDX-License-Identifier: Apache-2.0
"""Transforms of Megatron-Core, and targets whose weights it keeps in MXFP8."""

from __future__ import annotations

import dataclasses
import importlib
import weakref
from typing import Any, Protocol

import torch

import reshard
from reshard.live._modules import chunks_of, held_by, module_tensors
from reshard.live._parts import Held

Slices = tuple[slice, ...]

#: Methods of modules in main that renew what was derived from a quantised weight.
_RENEWING = ("refresh_flashinfer_mxfp8_weights", "refresh_te_mxfp8_batch_invariant_weights")


class Transform(Protocol):
  """What Megatron's ReshardTransform does: changes tensors between a model and the wire."""

  def should_transform(self, param_name: str, /) -> bool: ...
  def prepare_send(self, param_name: str, src_slice: Slices, src_param: Any, /) -> list[torch.Tensor]: ...
  def prepare_recv(self, param_name: str, dst_slice: Slices, /) -> list[torch.Tensor]: ...
  def finalize_recv(
    self, param_name: str, dst_slice: Slices, recv_buffers: list[torch.Tensor], /
  ) -> None: ...


@dataclasses.dataclass(frozen=True)
class Quantised:
  """The weights of a target that quantise() took out of its parameters."""

  held: tuple[Held, ...]  # what they were
  transform: Transform  # quantises what arrives, into buffers that stay where they are


_quantised: weakref.WeakKeyDictionary[torch.nn.Module, Quantised] = weakref.WeakKeyDictionary()


def quantised(modules: list[Any]) -> Quantised | None:
  """What quantise() made of a model; None if it did nothing."""
  return _quantised.get(chunks_of(modules)[0].module) if modules else None


def quantise(modules: list[Any]) -> None:
  """Lets Megatron quantise the weights of a target whose config asks for MXFP8 inference, once.

  Raises UnsupportedError for a release that cannot, and for a target of several chunks.
  """
  chunks = chunks_of(modules) if modules else []
  if not chunks or not _wants_mxfp8(chunks[0].module) or quantised(modules) is not None:
    return
  if len(chunks) > 1:
    raise reshard.UnsupportedError(
      f"Megatron-Core quantises a target of one chunk to MXFP8, but this one has {len(chunks)}"
    )
  refit = importlib.import_module("megatron.core.resharding.refit")
  set_up = getattr(refit, "_setup_mxfp8_transform_on_plan", None)
  if set_up is None:
    raise reshard.UnsupportedError(
      "this release of Megatron-Core does not quantise targets to MXFP8; 0.17 and later do"
    )
  before = held_by(modules)
  plan: Any = importlib.import_module("megatron.core.resharding.utils").ReshardPlan([], [])
  set_up(plan, modules)
  transform = getattr(plan, "transform", None)
  if transform is None:  # main also asks whether the config switches FP8 on
    return
  left = module_tensors(modules)
  gone = tuple(held for held in before if held.name not in left)
  _quantised[chunks[0].module] = Quantised(gone, transform)


def check_covered(modules: list[Any], transform: Transform | None) -> None:
  """Raises InvalidArgumentError for a quantised weight of a target that a transform does not take."""
  known = quantised(modules)
  for held in known.held if known is not None else ():
    if transform is None or not transform.should_transform(held.name):
      raise reshard.InvalidArgumentError(f"'{held.name}' is quantised, and the transform does not take it")


def check_known(modules: list[Any]) -> None:
  """Raises InvalidArgumentError for a weight of a target that something else quantised."""
  known = quantised(modules)
  ours = {held.name for held in known.held} if known is not None else set()
  for chunk in chunks_of(modules):
    for prefix, module in chunk.module.named_modules():
      for key, value in vars(module).items():
        name = chunk.front + (f"{prefix}.{key}" if prefix else key)
        if type(value).__name__ == "MXFP8Tensor" and name not in ours:
          raise reshard.InvalidArgumentError(
            f"'{name}' is quantised already: call prepare_swap_model_weights() while the target holds BF16"
          )


def renew_derived(modules: list[Any]) -> None:
  """Renews what a quantised target derives from its weights."""
  if quantised(modules) is None:
    return
  for chunk in chunks_of(modules):
    for module in chunk.module.modules():
      for method in _RENEWING:
        if callable(getattr(module, method, None)):
          getattr(module, method)()
  if torch.cuda.is_available():
    torch.cuda.synchronize()


def _wants_mxfp8(module: Any) -> bool:
  config = getattr(module, "config", None)
  kind = (getattr(config, "transformer_impl", None), getattr(config, "fp8_recipe", None))
  return kind == ("inference_optimized", "mxfp8")
