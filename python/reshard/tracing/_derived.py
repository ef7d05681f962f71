# SPDX-License-Identifier: Apache-2.0
"""Tensors that SGLang's modules derive from loaded ones.

The model's `post_load_weights()` makes MLA's w_kc and w_vc from kv_b_proj. `refresh_gemma_weight()` of Gemma's
norms, which Qwen3-Next and Qwen3.5 have too, makes 1 + weight. SGLang's loaders call both; whoever writes
parameters without a loader has to call them.
"""

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch

_OF_MODEL, _OF_NORM = "post_load_weights", "refresh_gemma_weight"


@contextlib.contextmanager
def nothing_derived(model: torch.nn.Module) -> Iterator[None]:
  """Keeps loaders from deriving, so that they write nothing but what they load."""
  with contextlib.ExitStack() as stack:
    for part, name in list(_deriving(model)):
      stack.enter_context(unittest.mock.patch.object(part, name, lambda *_, **__: None))
    yield


def derive(model: torch.nn.Module) -> None:
  """Derives all of them anew from the parameters, as the model's own loader does."""
  for part, name in _deriving(model):
    getattr(part, name)()


def _deriving(model: torch.nn.Module) -> Iterator[tuple[Any, str]]:
  """The parts of a model that derive tensors, and by which method."""
  for part in model.modules():
    if callable(getattr(part, _OF_NORM, None)):
      yield part, _OF_NORM
  if callable(getattr(model, _OF_MODEL, None)):
    yield model, _OF_MODEL
