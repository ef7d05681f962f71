# SPDX-License-Identifier: Apache-2.0
"""A worker of vLLM in this process, without a server: its model, loaded by vLLM's own loader on a CPU, and reshard's worker engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.model_executor.model_loader import reload as vllm_reload

from reshard.check import Report
from reshard.check.vllm import check_model, fresh_of
from reshard.tracing.vllm import engine_config, parallel_state_of
from reshard.vllm import interface
from reshard.vllm.worker import WorkerEngine

__all__ = ["DirectClient", "VllmWorker", "running"]


class VllmWorker:
  """The worker of an engine with one rank.

  Attributes: `config`, the VllmConfig; `model`, the live model; `engine`, reshard's worker engine.
  """

  def __init__(self, config: Any, model: torch.nn.Module) -> None:
    self.config, self.model = config, model
    self.device = torch.device("cpu")
    self.engine = WorkerEngine(WeightTransferConfig(backend=interface.BACKEND), config, self.device, model)

  def check(self, folder: str | os.PathLike[str]) -> Report:
    """Compares the live model with a fresh load of a checkpoint."""
    return check_model(self.model, self.config, self.device, os.fspath(folder))

  def reload(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """vLLM's own layerwise reload, without reshard."""
    with interface.inside(self.config, self.device):
      vllm_reload.initialize_layerwise_reload(self.model)
      cast(Any, self.model).load_weights(weights)
      vllm_reload.finalize_layerwise_reload(self.model, self.config.model_config)


class DirectClient:
  """A trainer's client of a worker in this process."""

  def __init__(self, worker: VllmWorker) -> None:
    self._engine = worker.engine

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Joins."""
    self._engine.init_transfer_engine(self._engine.parse_init_info(init_info))

  def start_weight_update(self) -> None:
    """Begins an update."""
    self._engine.start_weight_update()

  def update_weights(self, update_info: Any) -> None:
    """Receives an update."""
    self._engine.update_weights(update_info)

  def finish_weight_update(self, weight_version: str | None = None) -> None:
    """Ends an update."""
    self._engine.finish_weight_update()

  def get_world_size(self) -> int:
    """One."""
    return 1


@contextlib.contextmanager
def running(folder: str | os.PathLike[str], **options: Any) -> Iterator[VllmWorker]:
  """A worker that was started on a checkpoint; `options` of vllm.EngineArgs.

  Errors: UnsupportedError if this process uses torch.distributed; those of vLLM.
  """
  config = engine_config(folder, **options)
  with parallel_state_of(config, 0):
    fresh = fresh_of(config, config.model_config, torch.device("cpu"), os.fspath(folder))
    with contextlib.ExitStack() as stack, torch.no_grad():
      with fresh.build() as model:
        for _, step in fresh.steps:
          step(model)
      worker = VllmWorker(config, model)
      stack.callback(worker.engine.shutdown)
      yield worker
