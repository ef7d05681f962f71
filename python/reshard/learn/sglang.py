# SPDX-License-Identifier: Apache-2.0
"""Teaches the layouts of SGLang: traces of its own classes and loaders, on small models."""

import pathlib
from collections.abc import Sequence
from typing import Any

from reshard.tracing.vision import import_torchvision

import_torchvision()  # before SGLang and transformers ask whether it is there

import sglang  # noqa: E402

from reshard import _core  # noqa: E402
from reshard.learn.models.configs import aliases_of, classes as all_classes, defaults_of, numbers_of, tied_names  # noqa: E402
from reshard.learn.engines import SEEN_AT, proved_with_values  # noqa: E402
from reshard.learn.fitting.evidence import Sight  # noqa: E402
from reshard.learn.learner import Sizes  # noqa: E402
from reshard.learn.sglang_parallel import STAGES, finish, rows  # noqa: E402
from reshard.tracing.sglang import trace_sglang  # noqa: E402

__all__ = [
  "DTYPE", "FRAMEWORK", "RELEASE", "SEEN_AT", "STAGES", "aliases_of", "classes", "defaults_of", "finish", "layout_of", "rows", "sight",
  "tied_names",
]  # fmt: skip

FRAMEWORK, RELEASE = "sglang", sglang.__version__.split("+")[0]
#: Engines are built in the config's dtype, whatever the checkpoint has.
DTYPE = "config"


def classes() -> list[str]:
  """The classes with a language model's head that both transformers and this SGLang have."""
  from sglang.srt.models.registry import ModelRegistry

  known = ModelRegistry.get_supported_archs()
  return [name for name in all_classes() if name in known]


def layout_of(
  folder: pathlib.Path, sizes: Sizes, ranks: Sequence[int] | None = None
) -> _core.Layout:
  """What SGLang's loader leaves on ranks (None: on all), at these sizes, if shared experts are not fused with
  others: whether they are depends on the GPU."""
  keys: dict[str, Any] = {**sizes, "disable_shared_experts_fusion": True}
  return trace_sglang(folder, ranks=ranks, prove=proved_with_values(sizes), **keys).layout


def sight(
  folder: pathlib.Path, sizes: Sizes, model: int, ranks: Sequence[int] | None = None
) -> Sight:
  return Sight.of(layout_of(folder, sizes, ranks), sizes, numbers_of(folder), model)
