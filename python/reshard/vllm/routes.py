# SPDX-License-Identifier: Apache-2.0
"""How one worker takes its weights: which tensors it receives, and how they get into its model."""

from __future__ import annotations

import abc
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import reshard
import torch
from reshard.vllm import manifest, reload
from reshard.vllm.link import Invitation
from vllm.logger import init_logger

if TYPE_CHECKING:
  from vllm.config import VllmConfig

logger = init_logger(__name__)

__all__ = ["CheckpointRoute", "LocalRoute", "Route", "candidates"]


class Route(abc.ABC):
  """One way of taking weights.

  Attributes:
    holds: what this worker receives, for the layout of all workers.
    live: those of it that a refit writes into the model's own memory.
  """

  name = ""
  holds: manifest.Manifest
  live: dict[str, torch.Tensor]

  def allocate(self, layout: reshard.Layout, rank: int) -> dict[str, Any]:
    """This worker's memory of the layout of all workers, by name."""
    if self.live:
      staged = {
        entry["name"]: torch.zeros(entry["shape"], dtype=getattr(torch, entry["dtype"]))
        for entry in self.holds
        if entry["name"] not in self.live
      }
      self._arrived = staged
      return staged | self.live
    # Trainers on this host write into it.
    buffers = reshard.RankBuffers.allocate(layout, [rank], shared=True)
    memory: dict[str, Any] = buffers.tensors(rank)
    self._arrived = {name: tensor.torch() for name, tensor in memory.items()}
    return memory

  @abc.abstractmethod
  def apply(self, model: torch.nn.Module, model_config: Any) -> None:
    """Puts what has arrived into the model. After an error the model is torn."""


class CheckpointRoute(Route):
  """All tensors of the model, whole, through `load_weights`: works for whatever vLLM can load."""

  name = "checkpoint"

  def __init__(self, invitation: Invitation) -> None:
    self.holds, self.live = [], {}
    self._shapes: dict[str, list[int]] = {}
    for number, (name, dtype, shape, stored) in enumerate(invitation.tensors):
      part = {
        "tensor": number,
        "box": [[0, n] for n in shape],
        "at": [0] * len(shape),
        "dims": list(range(len(shape))),
        "gaps": [0] * len(shape),
      }
      entry = {"name": name, "shape": shape, "dtype": dtype, "map": "identity", "padded": False}
      self.holds.append({**entry, "parts": [part]})
      self._shapes[name] = stored

  def apply(self, model: torch.nn.Module, model_config: Any) -> None:
    """Puts what has arrived into the model. After an error the model is torn."""
    weights = [(name, self._arrived[name].view(shape)) for name, shape in self._shapes.items()]
    reload.load_checkpoint(model, model_config, weights)


class LocalRoute(Route):
  """This worker's own tensors, as its loader would have left them.

  Errors: UnsupportedError, with the first difference, if `holds` does not fit the model.
  """

  name = "local"

  def __init__(self, model: torch.nn.Module, holds: manifest.Manifest, in_place: bool) -> None:
    self.holds, self.live = [], {}
    self._shapes: dict[str, tuple[int, ...]] = {}
    self._written: dict[torch.nn.Module, None] = {}
    for entry, slot in zip(holds, fit(model, holds), strict=True):
      # The refit casts values to the dtype of the parameter.
      self.holds.append({**entry, "dtype": _dtype_name(slot.dtype)})
      live = getattr(slot.module, slot.attribute).detach()
      if in_place and _is_own(live, slot):
        self.live[entry["name"]] = live.view(entry["shape"])
        self._written[slot.module] = None
      else:
        self._shapes[entry["name"]] = slot.shape

  def apply(self, model: torch.nn.Module, model_config: Any) -> None:
    """Puts what has arrived into the model. After an error the model is torn."""
    for module in self._written:
      reload.process(module)
    staged = {name: self._arrived[name].view(shape) for name, shape in self._shapes.items()}
    reload.load_local(model, model_config, staged, written=self._written)


def fit(model: torch.nn.Module, holds: manifest.Manifest) -> list[reload.LoadTensor]:
  """The model's tensors that a manifest fills, in its order.

  Errors: UnsupportedError names the first tensor that differs, and the first parameter that is
  missing.
  """
  expected = reload.load_tensors(model)
  slots: list[reload.LoadTensor] = []
  for entry in holds:
    name, slot = entry["name"], expected.get(entry["name"])
    if slot is None:
      raise reshard.UnsupportedError(f"the model has no tensor '{name}'")
    shape: list[int] = entry.get("module_shape") or entry["shape"]
    if tuple(shape) != slot.shape:
      raise reshard.UnsupportedError(
        f"tensor '{name}': the layout has {list(shape)}, the model {list(slot.shape)}"
      )
    slots.append(slot)
  held = {entry["name"] for entry in holds}
  for name, slot in expected.items():
    if slot.parameter and name not in held:
      raise reshard.UnsupportedError(f"the layout has nothing for parameter '{name}'")
  return slots


def candidates(
  model: torch.nn.Module, vllm_config: VllmConfig, invitation: Invitation, rank: int
) -> dict[str, manifest.Manifest]:
  """The local layouts of this worker that fit its model, the most certain first.

  Args:
    rank: of this worker among those of the engine.

  Errors: UnsupportedError if the model's loader refuses the trainer's names or shapes: a whole
  checkpoint would be refused too, when it is too late.
  """
  found: dict[str, manifest.Manifest] = {}
  if invitation.route == "checkpoint":
    return found
  for name, find in (("traced", _traced), ("family", _family)):
    try:
      holds = find(model, vllm_config, invitation, rank)
      fit(model, holds)
      found[name] = holds
    except Exception as error:
      if isinstance(error, (KeyError, ValueError)) and not isinstance(error, reshard.Error):
        raise reshard.UnsupportedError(
          f"this engine's loader refuses the trainer's tensors: {error!r}"
        ) from error
      logger.info("reshard: no layout of this worker by %s: %r", name, error)
  return found


def _traced(
  model: torch.nn.Module, vllm_config: VllmConfig, invitation: Invitation, rank: int
) -> manifest.Manifest:
  """Learned from the model's own loader."""
  from reshard import tracing

  found = tracing.traced(
    lambda _: reload.unloaded(model, vllm_config.model_config),
    lambda module, weights: cast(Any, module).load_weights(weights),
    manifest.model_of(invitation.tensors),
    ranks=[rank],
    method="recording",
    name="engine",
  )
  return manifest.describe(found, rank)


def _family(
  model: torch.nn.Module, vllm_config: VllmConfig, invitation: Invitation, rank: int
) -> manifest.Manifest:
  """By the closed form of the family `vllm`, for architectures that have one."""
  if not invitation.config:
    raise reshard.UnsupportedError("the trainer's model has no config.json")
  parallel = vllm_config.parallel_config
  keys: dict[str, Any] = {
    "tp": parallel.tensor_parallel_size,
    "pp": parallel.pipeline_parallel_size,
  }
  if parallel.enable_expert_parallel:
    keys["dp"] = parallel.data_parallel_size
    keys["ep"] = keys["tp"] * keys["dp"]
  else:
    keys["replicas"] = parallel.data_parallel_size
  if any(".routed_experts." in name for name in reload.load_tensors(model)):
    keys["experts"] = "routed_experts"
  text = "vllm:" + ",".join(f"{k}={v}" for k, v in keys.items())
  with _opened(invitation.config) as own:
    if manifest.table_of(own) != invitation.tensors:
      raise reshard.UnsupportedError("the trainer's tensors are not those of its config.json")
    return manifest.describe(reshard.layout(text, own), rank)


@contextlib.contextmanager
def _opened(config: str) -> Iterator[reshard.Model]:
  with tempfile.TemporaryDirectory(prefix="reshard-") as folder:
    path = Path(folder) / "config.json"
    path.write_text(config)
    yield reshard.open_model(str(path))


def _is_own(live: torch.Tensor, slot: reload.LoadTensor) -> bool:
  """True if kernels read this very memory, in the form in which it is loaded."""
  method = type(getattr(slot.module, "quant_method", None)).__name__
  return (
    method in ("NoneType", "UnquantizedEmbeddingMethod")
    and tuple(live.shape) == slot.shape
    and live.dtype == slot.dtype
    and live.is_contiguous()
    and live.device.type == "cpu"
    and live.layout == torch.strided
  )


def _dtype_name(dtype: torch.dtype) -> str:
  return str(dtype).removeprefix("torch.")
