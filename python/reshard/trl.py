# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers, whose vLLM server gets its weights by reshard. docs/trl.md.

    reshard.trl.install()  # on every rank, before a trainer is made

Needs TRL.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import reshard
import reshard.vllm
import torch
from reshard.lora import part_of
from torch import distributed

__all__ = ["Update", "install"]

#: Of `reshard.vllm.Trainer`, which are known here.
_OWN = ("layout", "tensors", "client", "rank", "size", "merge")


@dataclass(frozen=True)
class Update:
  """One update of the server, on this rank.

  step     the optimiser steps that the weights have seen, as far as updates count them: 0 is the first update
  seconds  from the call until the server generates with the new weights, checks included
  report   the session's
  trainer  the reshard.vllm.Trainer; `trainer.checked` is the report of the last check
  """

  step: int
  seconds: float
  report: reshard.SessionReport
  trainer: reshard.vllm.Trainer


@dataclass
class _Settings:
  on_update: Callable[[Update], None] | None
  timeout: float
  options: dict[str, Any]


_settings: _Settings | None = None


def install(
  *, on_update: Callable[[Update], None] | None = None, timeout: float = 600.0, **options: Any
) -> None:
  """Has TRL's trainers of this process bring a vLLM server to their weights by reshard.

  Replaces two public methods of TRL, `VLLMClient.init_communicator` and `VLLMGeneration.sync_weights`, and of its online
  DPO trainer, which has a copy of the latter, `_move_model_to_vllm`. The new ones act on servers that were started with
  `--weight-transfer-config '{"backend": "reshard"}'`; with any other server, and with `vllm_mode="colocate"`, they call
  TRL's own. Calling it again changes the options.

  on_update  called on every rank after each update
  timeout    seconds for one call to the server; longer than an update takes
  options    of `reshard.vllm.Trainer`, such as verify=True, check=0.01, pause="wait", deadline=600.0

  Updates raise UnsupportedError for FSDP1 and DeepSpeed's stage 3, whose parameters are not where torch has them, and what
  `reshard.vllm.Trainer` raises. After an error the next update joins the server anew.

  Raises ImportError without TRL, and InvalidArgumentError for options that `reshard.vllm.Trainer` does not have.
  """
  global _settings
  from trl.generation.vllm_client import VLLMClient
  from trl.generation.vllm_generation import VLLMGeneration

  known = set(inspect.signature(reshard.vllm.Trainer.__init__).parameters) - {"self", *_OWN}
  unknown = sorted(set(options) - known)
  if unknown:
    raise reshard.InvalidArgumentError(f"reshard.trl.install: no option {', '.join(unknown)}; there are {', '.join(sorted(known))}")
  first, _settings = _settings is None, _Settings(on_update, timeout, options)
  if not first:
    return
  VLLMClient.init_communicator = _opening(VLLMClient.init_communicator)
  VLLMGeneration.sync_weights = _syncing(VLLMGeneration.sync_weights, "mode")
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # that it is experimental
      from trl.experimental.online_dpo import OnlineDPOTrainer
  except ImportError:  # a release without it, or what it needs is not installed
    return
  OnlineDPOTrainer._move_model_to_vllm = _syncing(OnlineDPOTrainer._move_model_to_vllm, "vllm_mode")


def _opening(original: Callable[..., None]) -> Callable[..., None]:
  """VLLMClient.init_communicator: a server with the back end reshard has no group to open yet."""

  @functools.wraps(original)
  def init_communicator(client: Any, *args: Any, **kwargs: Any) -> None:
    if not _takes_reshard(client):
      original(client, *args, **kwargs)

  return init_communicator


def _syncing(original: Callable[..., None], mode: str) -> Callable[..., None]:
  """The method that brings a server to the weights of its trainer; `mode`: the attribute that says "server"."""

  @functools.wraps(original)
  def sync_weights(owner: Any) -> None:
    if getattr(owner, mode) != "server":
      original(owner)
      return
    link: _Link | None = owner.__dict__.get("_reshard_link")
    if link is None:
      link = owner._reshard_link = _Link(owner)
    if link.takes_reshard:
      link.update(owner)
    else:
      original(owner)

  return sync_weights


def _takes_reshard(client: Any) -> bool:
  config = client.get_server_info().get("weight_transfer_config")
  return isinstance(config, dict) and config.get("backend") == "reshard"


class _Link:
  """One trainer of TRL and its server."""

  def __init__(self, owner: Any) -> None:
    main = owner.accelerator.is_main_process
    said = [_takes_reshard(owner.vllm_client) if main else None]
    if owner.accelerator.num_processes > 1:
      distributed.broadcast_object_list(said, src=0)
    self.takes_reshard = bool(said[0])
    self._step = 0
    self._trainer: reshard.vllm.Trainer | None = None
    self._addresses: dict[str, int] = {}

  def update(self, owner: Any) -> None:
    """Collective over the ranks of the trainer."""
    settings = _settings
    assert settings is not None  # the methods that call this are install()'s
    began = time.perf_counter()
    try:
      trainer = self._joined(owner, settings)
      report = trainer.update()
    except BaseException:
      self._leave()
      raise
    update = Update(self._step, time.perf_counter() - began, report, trainer)
    self._step += 1
    if settings.on_update is not None:
      settings.on_update(update)

  def _joined(self, owner: Any, settings: _Settings) -> reshard.vllm.Trainer:
    tensors = _tensors(owner)
    addresses = {name: _local(tensor).data_ptr() for name, tensor in tensors.items()}
    if self._trainer is not None:
      moved = [name for name, address in addresses.items() if self._addresses.get(name) != address]
      if moved:
        raise reshard.UnsupportedError(f"'{moved[0]}' is in other memory than at the first update")
      return self._trainer
    with tempfile.TemporaryDirectory() as folder:  # of the model's config, which the trainer reads
      self._trainer = self._trainer_of(owner, tensors, folder, settings)
    self._addresses = addresses
    self._close = weakref.finalize(self, self._trainer.close)  # also when the process ends
    return self._trainer

  def _trainer_of(
    self, owner: Any, tensors: dict[str, Any], folder: str, settings: _Settings
  ) -> reshard.vllm.Trainer:
    client = None
    if owner.accelerator.is_main_process:
      client = reshard.vllm.HttpClient(owner.vllm_client.base_url, settings.timeout)
    return reshard.vllm.Trainer(
      _layout(owner.model, tensors, folder),
      {name: _local(tensor) for name, tensor in tensors.items()},
      client=client,
      rank=owner.accelerator.process_index,
      size=owner.accelerator.num_processes,
      merge=_adapters(owner.model),
      **settings.options,
    )

  def _leave(self) -> None:
    if self._trainer is not None:
      self._trainer = None
      self._close()


def _local(tensor: Any) -> torch.Tensor:
  local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
  return local.detach()


def _tensors(owner: Any) -> dict[str, Any]:
  """The parameters of the model, where torch has them, without adapters that are not in use."""
  state = owner.accelerator.state
  fsdp, deepspeed = getattr(state, "fsdp_plugin", None), getattr(state, "deepspeed_plugin", None)
  if fsdp is not None and getattr(fsdp, "fsdp_version", 1) != 2:
    raise reshard.UnsupportedError("reshard.trl: FSDP1 keeps parameters in flat tensors; set fsdp_version: 2")
  if deepspeed is not None and deepspeed.zero_stage == 3:
    raise reshard.UnsupportedError("reshard.trl: stage 3 of DeepSpeed keeps parameters in flat tensors; use FSDP2")
  used = _adapters(owner.model)
  kept = {}
  for name, tensor in owner.model.named_parameters():
    part = part_of(name) if used is not None else None
    if part is None or part.adapter in (used or {}):
      kept[name] = tensor
  return kept


def _adapters(model: Any) -> dict[str, Any] | None:
  """The configs of a PEFT model's adapters in use; None: it has none."""
  configs = getattr(model, "peft_config", None)
  if not configs:
    return None
  return {name: configs[name] for name in model.active_adapters}


def _layout(model: Any, tensors: dict[str, Any], folder: str) -> reshard.Layout:
  """The layout in which the ranks hold the model's parameters, in the names of its checkpoint."""
  if _adapters(model) is not None:  # its parameters have names that no class of transformers has
    return reshard.of_dtensors(tensors)
  return reshard.of_dtensors(tensors, reshard.model_of(model.config, os.path.join(folder, "model.json")))
