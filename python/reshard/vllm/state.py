# SPDX-License-Identifier: Apache-2.0
"""What a worker of vLLM may change after it has loaded its weights: asked for when a trainer joins, and at each update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import reshard
import torch
from reshard.engines import state
from reshard.vllm import reload

if TYPE_CHECKING:
  from vllm.config import VllmConfig

__all__ = ["check", "placement"]

_SIZES = (
  "world_size",
  "tensor_parallel_size",
  "pipeline_parallel_size",
  "data_parallel_size",
  "prefill_context_parallel_size",
  "enable_expert_parallel",
)


def check(model: torch.nn.Module, vllm_config: VllmConfig, in_place: bool, update: bool) -> None:
  """Raises UnsupportedError if the model cannot be updated as it is now.

  in_place  weights are written where they are
  update    one begins: the memory must be there
  """
  parallel: Any = vllm_config.parallel_config
  if getattr(parallel, "enable_eplb", False) or any(_live_maps(model)):
    raise reshard.UnsupportedError(
      "enable_eplb: the expert load balancer moves experts between slots while the engine serves; "
      "start the engine without it"
    )
  # A group's processes keep the addresses that they received, and a wake-up brings other memory.
  if in_place and getattr(vllm_config.model_config, "enable_sleep_mode", False):
    raise reshard.UnsupportedError("enable_sleep_mode: in_place=True needs memory that stays; leave it out")
  if update:
    name = state.unmapped([*model.named_parameters(), *model.named_buffers()])
    if name:
      raise reshard.UnsupportedError(
        f"the engine sleeps, without memory for '{name}': wake it up (tags=['weights'] will do), then make a new Trainer"
      )


def placement(model: torch.nn.Module, vllm_config: VllmConfig) -> dict[str, Any]:
  """What a worker's layout depends on."""
  parallel: Any = vllm_config.parallel_config
  forms = {n: [list(t.shape), str(t.dtype)] for n, t in reload.load_tensors(model).items()}
  return {
    "the sizes of its parallel groups": {name: getattr(parallel, name, None) for name in _SIZES},
    "the names, shapes and dtypes of its tensors": state.digest(forms),
    "the placement of its experts": state.digest(state.experts_of(model)),
  }


def _live_maps(model: torch.nn.Module) -> Iterator[bool]:
  """Whether each layer has a map of experts that a load balancer changes."""
  for module in model.modules():
    balanced = getattr(module, "eplb_state", None)
    yield getattr(balanced, "logical_to_physical_map", None) is not None
