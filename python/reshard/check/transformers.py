# SPDX-License-Identifier: Apache-2.0
"""The check of a module of transformers: the simplest engine, which derives nothing but what its constructor makes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from reshard.check._fresh import Fresh, check
from reshard.check._report import Report
from reshard.check._rules import Rules
from reshard.tracing.transformers import build_and_load

__all__ = ["RULES", "check_module"]

RULES = Rules(attributes={"notes of transformers": ("generation_config", "name_or_path", "_weight_conversions", "_use_kernels")})


def check_module(
  module: Any, weights: str | os.PathLike[str] | Callable[[], Iterable[tuple[str, torch.Tensor]]]
) -> Report:
  """Compares a whole module with one that transformers loads freshly.

  module   of transformers, on any device, not sharded
  weights  the folder of a checkpoint; or a function that gives whole tensors under its names, anew each time

  Errors: those of transformers.
  """
  dtype = next(module.parameters()).dtype
  if callable(weights):
    build, load = build_and_load(module.config, dtype)
    steps = [("load", lambda made: load(made, iter(weights())))]
  else:
    folder = os.fspath(weights)
    build, steps = (lambda _: type(module).from_pretrained(folder, dtype=dtype)), []

  @contextlib.contextmanager
  def built() -> Iterator[torch.nn.Module]:
    made: Any = build(0)
    yield made.train(module.training)

  return check(module, Fresh(built, steps), RULES)
