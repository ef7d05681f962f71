# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight-transfer interface, 0.24 to 0.33, and what differs between its versions.

The engines of this package are written against the newest interface; what older versions lack is
decided here, by looking at the classes of the vLLM that is installed. `DIFFERENCES` says what was
found in the wheels of each version.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer import base, factory

if TYPE_CHECKING:
  from vllm.config import VllmConfig

BACKEND = "reshard"

#: What changed, by the version in which it first appears.
DIFFERENCES: dict[str, tuple[str, ...]] = {
  "0.24": (
    "the worker engine is constructed with (config, parallel_config, model)",
    "the worker itself starts and finishes the layerwise reload",
    "receive_weights(update_info, load_weights); no start, update or finish of an engine",
    "an update's info must have update_kind",
    "trainer: a static trainer_send_weights() only; no engine, factory or client",
    "no weight_version",
  ),
  "0.25": (
    "the worker engine is constructed with (config, vllm_config, device, model)",
    "start_weight_update, update_weights, finish_weight_update belong to the engine",
  ),
  "0.26": (
    "TrainerWeightTransferEngine, WeightTransferTrainerFactory, WeightSource, clients",
    "trainer_init(config, init_info, *, client, source); the factory takes backend and config",
    "draft models: set_weight_update_target",
  ),
  "0.27": (
    "trainer_init(init_info, *, client, source); the backend is TrainerInitInfo.backend",
    "finish_weight_update(weight_version), update_weight_version, /weight_info",
  ),
  "0.28": ("trainer_send_weights() of the worker engine is gone; source may be None",),
  "0.29": ("update_weights takes a list, one entry per worker; defers_processing, drain_pending",),
  "0.32": ("shutdown_weight_transfer_engine, /weight_checker",),
  "0.33": ("WeightSource.metadata is a property; iter_full() and iter_local() replace iteration",),
}

#: The interface of 0.24, in which an engine receives `load_weights` from its worker.
IS_FIRST = not hasattr(base.WeightTransferEngine, "start_weight_update")
#: True where a trainer engine can be registered.
HAS_TRAINERS = hasattr(base, "TrainerWeightTransferEngine")

TrainerInfoBase: Any = getattr(base, "TrainerInitInfo", object)
TrainerBase: Any = getattr(base, "TrainerWeightTransferEngine", object)


def register() -> None:
  """Registers the engines under the name `reshard`. Does nothing if they are registered."""
  _add(factory.WeightTransferEngineFactory, "reshard.vllm.worker", "WorkerEngine")
  if HAS_TRAINERS:
    _add(factory.WeightTransferTrainerFactory, "reshard.vllm.trainer_engine", "TrainerEngine")


def _add(registry: Any, module: str, name: str) -> None:
  if BACKEND not in registry._registry:
    registry.register_engine(BACKEND, module, name)


def current_config(args: tuple[Any, ...]) -> tuple[Any, torch.device, torch.nn.Module]:
  """The VllmConfig, device and model among the arguments of a worker engine's constructor."""
  if len(args) == 4:
    return args[1], args[2], args[3]
  from vllm.config import get_current_vllm_config

  _, _, model = args
  return get_current_vllm_config(), next(model.parameters()).device, model


@contextlib.contextmanager
def inside(vllm_config: VllmConfig, device: torch.device) -> Iterator[None]:
  """What a worker of the newest version sets around each call of an engine."""
  from vllm.config import set_current_vllm_config

  with set_current_vllm_config(vllm_config), torch.device(device):
    yield


def tensors_of(source: Any) -> Iterator[tuple[str, torch.Tensor]]:
  """Whole tensors of a WeightSource under the names of a checkpoint, of any version."""
  full = getattr(source, "iter_full", None)
  yield from (full() if full is not None else source)


def as_dict(info: Any) -> dict[str, Any]:
  """A dataclass as the dict that a client sends."""
  return dataclasses.asdict(info)
