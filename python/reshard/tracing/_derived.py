# SPDX-License-Identifier: Apache-2.0
"""Tensors that SGLang's modules derive from loaded ones: MLA's w_kc and w_vc, of kv_b_proj, by the model's
`post_load_weights()`; 1 + weight of Gemma's norms, which Qwen3-Next and Qwen3.5 have too, by their
`refresh_gemma_weight()`. Its loaders call both; who writes parameters otherwise has to."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_OF_MODEL, _OF_NORM = "post_load_weights", "refresh_gemma_weight"


@contextlib.contextmanager
def nothing_derived(model: torch.nn.Module) -> Iterator[None]:
  """While loaders derive nothing, so that what they load is all that they write."""
  changed = [(part, name) for part, name in _deriving(model)]
  for part, name in changed:
    part.__dict__[name] = lambda *_, **__: None
  try:
    yield
  finally:
    for part, name in changed:
      del part.__dict__[name]


def derive(model: torch.nn.Module) -> None:
  """Derives all of them anew, as the model's own loader does."""
  for part, name in _deriving(model):
    getattr(part, name)()


def _deriving(model: torch.nn.Module) -> Iterator[tuple[Any, str]]:
  """The parts of a model that derive tensors, and by which method."""
  for part in model.modules():
    if callable(getattr(part, _OF_NORM, None)):
      yield part, _OF_NORM
  if callable(getattr(model, _OF_MODEL, None)):
    yield model, _OF_MODEL
