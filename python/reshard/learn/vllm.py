# SPDX-License-Identifier: Apache-2.0
"""Teaches the layouts of vLLM: traces of its own classes and loaders, on small models."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.tracing.vision import import_torchvision

import_torchvision()  # before vLLM and transformers ask whether it is there

import vllm  # noqa: E402

from reshard import _core  # noqa: E402
from reshard.learn.models.configs import aliases_of, classes as all_classes, defaults_of, numbers_of, tied_names  # noqa: E402
from reshard.learn.engines import SEEN_AT, proved_with_values  # noqa: E402
from reshard.learn.fitting.evidence import Sight  # noqa: E402
from reshard.learn.vllm_parallel import STAGES, finish, rows  # noqa: E402
from reshard.tracing.vllm import trace_vllm  # noqa: E402

__all__ = [
  "DTYPE", "FORMS", "FRAMEWORK", "RELEASE", "SEEN_AT", "STAGES", "aliases_of", "classes", "defaults_of", "finish", "layout_of", "rows", "sight",
  "tied_names",
]  # fmt: skip

FRAMEWORK, RELEASE = "vllm", vllm.__version__.split("+")[0]
#: Engines are built in the config's dtype, whatever the checkpoint has.
DTYPE = "config"
#: Flags that say how a fused tensor holds queries, keys and values, with others that add tensors of this form.
FORMS = (("multi_query", "bias", "parallel_attn"), ("new_decoder_architecture", "bias"))


def classes() -> list[str]:
  """The classes with a language model's head that both transformers and this vLLM have."""
  from vllm.model_executor.models import registry

  known = {**registry._TEXT_GENERATION_MODELS, **registry._MULTIMODAL_MODELS}
  return [name for name in all_classes() if name in known]


def layout_of(
  folder: pathlib.Path, sizes: Mapping[str, int], ranks: Sequence[int] | None = None
) -> _core.Layout:
  """What vLLM's loader leaves on ranks (None: on all), at these sizes."""
  keys: dict[str, Any] = {k: v for k, v in sizes.items() if k != "ep"}
  found = trace_vllm(
    folder,
    ep=sizes.get("ep", 1) > 1,
    ranks=ranks,
    prove=proved_with_values(sizes),
    **keys,
  )
  return found.layout


def sight(
  folder: pathlib.Path,
  sizes: Mapping[str, int],
  model: int,
  ranks: Sequence[int] | None = None,
) -> Sight:
  return Sight.of(layout_of(folder, sizes, ranks), sizes, numbers_of(folder), model)
