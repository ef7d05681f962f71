# SPDX-License-Identifier: Apache-2.0
"""How one worker takes its weights: which tensors it receives, and how they get into its model."""

from __future__ import annotations

import abc
import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import reshard
import torch
from reshard._gpus import home_of, why_not
from reshard import _manifest as manifest
from reshard.engines.invitation import Invitation
from reshard.engines.quantisation import Quantisation
from reshard.vllm import reload
from vllm.logger import init_logger

logger = init_logger(__name__)

__all__ = ["Arrived", "CheckpointRoute", "LocalRoute", "Route", "bytes_of", "candidates"]


# The bytes of a tensor by its name.
Raw = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Form:
  """A local tensor as the engine's loader has it: the same bytes."""

  name: str
  shape: tuple[int, ...]
  dtype: torch.dtype

  def view(self, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in this form."""
    return tensor.reshape(-1).view(torch.uint8).view(self.dtype).view(self.shape)


class Arrived:
  """This worker's memory of the layout of all workers.

  What a refit does not write into a model itself arrives in the host's memory, because engines leave little of a GPU's;
  but where the model's own memory is.

  live  what a refit writes into the models' own memory, by name
  """

  def __init__(self, layout: reshard.Layout, rank: int, live: dict[str, torch.Tensor]) -> None:
    #: By name, for the session.
    self.memory: dict[str, Any]
    if live:
      home = home_of(live.values())
      self._raw = {
        t.name: torch.zeros(t.bytes, dtype=torch.uint8, device=home)
        for t in layout.local(rank)
        if t.name not in live
      }
      self.memory = self._raw | live
      return
    # Trainers on this host write into it.
    self.memory = reshard.RankBuffers.allocate(layout, [rank], shared=True).tensors(rank)
    self._raw = {name: bytes_of(tensor) for name, tensor in self.memory.items()}

  def raw(self, name: str) -> torch.Tensor:
    """The bytes of a tensor that has arrived outside the models."""
    return self._raw[name]


class Route(abc.ABC):
  """One way of taking weights.

  Attributes:
    holds: what this worker receives, as plain values, for the layout of all workers.
    live: those of it that a refit writes into the model's own memory, by name.
    forms: of the others, data and scales, by name.
    exponents: those of which the model holds -exp(x), which torch computes here: its last bit is the loader's.
  """

  name = ""
  holds: manifest.Manifest
  live: dict[str, torch.Tensor]
  forms: dict[str, Form]
  exponents: Collection[str] = ()

  def arrived(self, raw: Raw) -> Iterator[tuple[str, torch.Tensor]]:
    """What has arrived outside the model, by the names of the engine's loader."""
    for name, form in self.forms.items():
      tensor = form.view(raw(name))
      yield form.name, -torch.exp(tensor) if name in self.exponents else tensor

  @abc.abstractmethod
  def apply(self, model: torch.nn.Module, model_config: Any, raw: Raw) -> None:
    """Puts what has arrived into the model. `raw`: its bytes, by the names of `holds`. After an error the model is
    torn."""


def bytes_of(tensor: Any) -> torch.Tensor:
  """The memory of a reshard.Tensor."""
  if tensor.nbytes == 0:
    return torch.empty(0, dtype=torch.uint8)
  return torch.frombuffer(tensor.raw(), dtype=torch.uint8)


class CheckpointRoute(Route):
  """All tensors of the model, whole, through `load_weights`: works for whatever vLLM can load. Also if only some are
  wanted."""

  name = "checkpoint"

  def __init__(self, invitation: Invitation, quant: Quantisation | None) -> None:
    from reshard.tracing._types import torch_dtype

    values = reshard.layout("hf", manifest.model_of(invitation.tensors))
    self.holds, self.live = manifest.describe(values, 0), {}
    files = {name: tuple(shape) for name, _, _, shape in invitation.tensors}
    self.forms = {}
    for t in (values if quant is None else quant.of(values, files=True)).local(0):
      shape = files.get(t.name, tuple(t.file_shape)) if quant is None else tuple(t.file_shape)
      self.forms[t.name] = Form(t.file_name, shape, torch_dtype(t.file_dtype.name.upper()))

  def apply(self, model: torch.nn.Module, model_config: Any, raw: Raw) -> None:
    """Puts what has arrived into the model. After an error the model is torn."""
    reload.load_checkpoint(model, model_config, self.arrived(raw))


class LocalRoute(Route):
  """This worker's own tensors, as its loader would have left them.

  layout  of this worker, over the trainer's model; quantised if the engine is.
  shared  modules of the model that are another model's, which updates them
  wanted  names of the trainer's tensors; modules that hold nothing of them are not updated, others whole. None: all

  Errors: UnsupportedError, with the first difference, if the layout does not fit the model.
  """

  name = "local"

  def __init__(
    self,
    model: torch.nn.Module,
    layout: reshard.Layout,
    rank: int,
    in_place: bool,
    shared: Collection[torch.nn.Module] = (),
    wanted: Collection[str] | None = None,
  ) -> None:
    self.holds, self.live, self.forms = [], {}, {}
    self.exponents = set()
    self._written: dict[torch.nn.Module, None] = {}
    slots = fit(model, layout, rank, shared)
    updated = {slot.module for slot in slots.values()}.difference(shared)
    if wanted is not None:
      updated &= {
        slots[t.name].module
        for t in layout.values.local(rank)
        if any(f.tensor in wanted for f in t.fragments)
      }
    chosen = set(layout.quant_tensors)
    for entry, values in zip(
      manifest.describe(layout.values, rank), layout.values.local(rank), strict=True
    ):
      name = entry["name"]
      if slots[name].module not in updated:
        continue
      if chosen.intersection(f.tensor for f in values.fragments):
        self.holds.append(entry)
        continue
      # The refit casts values to the dtype of the parameter.
      slot = slots[name]
      self.holds.append({**entry, "dtype": _dtype_name(slot.dtype)})
      live = getattr(slot.module, slot.attribute).detach()
      if entry["map"] == "negated_exp" and slot.dtype == torch.float32:
        self.holds[-1]["map"] = "identity"
        self.exponents.add(name)
      elif in_place and _is_own(live, slot):
        self.live[name] = live.view(entry["shape"])
        self._written[slot.module] = None
    for t in layout.local(rank):
      slot = slots[t.name]
      if t.name not in self.live and slot.module in updated:
        self.forms[t.name] = Form(t.file_name, slot.shape, slot.dtype)

  def apply(self, model: torch.nn.Module, model_config: Any, raw: Raw) -> None:
    """Puts what has arrived into the model. After an error the model is torn."""
    for module in self._written:
      reload.process(module)
    reload.load_local(model, model_config, dict(self.arrived(raw)), written=self._written)


def fit(
  model: torch.nn.Module,
  layout: reshard.Layout,
  rank: int,
  shared: Collection[torch.nn.Module] = (),
) -> dict[str, reload.LoadTensor]:
  """The model's tensors that a layout fills, by the layout's names. Those of shared modules may be missing.

  Errors: UnsupportedError names the first tensor that differs, and the first parameter that is
  missing.
  """
  expected = reload.load_tensors(model)
  slots: dict[str, reload.LoadTensor] = {}
  held: set[str] = set()
  for t in layout.local(rank):
    slot = expected.get(t.file_name)
    if slot is None:
      raise reshard.UnsupportedError(f"the model has no tensor '{t.file_name}'")
    if [n for n in t.file_shape if n != 1] != [n for n in slot.shape if n != 1]:
      raise reshard.UnsupportedError(
        f"tensor '{t.file_name}': the layout has {list(t.file_shape)}, the model {list(slot.shape)}"
      )
    slots[t.name] = slot
    held.add(t.file_name)
  for name, slot in expected.items():
    # Attention layers keep the scales of their KV caches, as in vLLM's own reload.
    if slot.parameter and name not in held and slot.module not in shared and not reload.is_attention(slot.module):
      raise reshard.UnsupportedError(f"the layout has nothing for parameter '{name}'")
  return slots


def quantisation_of(model_config: Any, invitation: Invitation) -> Quantisation | None:
  """How this engine's checkpoint is quantised; None if it is not, or if the trainer holds its data
  and scales as they are.

  Errors: UnsupportedError if reshard does not know how.
  """
  folder = model_config.model
  configs = (model_config.hf_config, getattr(model_config, "hf_text_config", None))
  keys = ("quantization_config", "compression_config")
  if not any(getattr(config, key, None) for config in configs for key in keys) and not (
    Path(folder) / "hf_quant_config.json"  # of ModelOpt
  ).is_file():
    return None
  if not Path(folder).is_dir():
    from huggingface_hub import snapshot_download

    folder = snapshot_download(folder, revision=model_config.revision, local_files_only=True)
  return Quantisation.of_checkpoint(folder, [name for name, *_ in invitation.tensors])


def candidates(
  model: torch.nn.Module,
  model_config: Any,
  parallel: Any,
  invitation: Invitation,
  quant: Quantisation | None,
  rank: int,
  shared: Collection[torch.nn.Module] = (),
) -> dict[str, reshard.Layout]:
  """The local layouts of this worker that fit its model, the most certain first.

  parallel  the engine's parallel_config, if the model is cut by it
  quant  how the engine's checkpoint is quantised, if the trainer's tensors are not.
  rank   of this worker among those of the engine; that of the layouts.

  Errors: UnsupportedError if the model's loader refuses the trainer's names or shapes: a whole
  checkpoint would be refused too, when it is too late; and if there is none but must be.
  """
  found: dict[str, reshard.Layout] = {}
  why: list[str] = []
  if invitation.route == "checkpoint":
    return found
  ways: dict[str, Callable[[], reshard.Layout]] = {
    "traced": lambda: _traced(model, model_config, invitation, quant, rank)
  }
  if parallel is not None:
    ways["family"] = lambda: _family(model, parallel, invitation, quant)
  for name, find in ways.items():
    try:
      layout = find()
      fit(model, layout, rank, shared)
      found[name] = layout
    except Exception as error:
      if isinstance(error, (KeyError, ValueError)) and not isinstance(error, reshard.Error):
        raise reshard.UnsupportedError(
          f"this engine's loader refuses the trainer's tensors: {error!r}"
        ) from error
      logger.info("reshard: no layout of this worker by %s: %r", name, error)
      why.append(f"{name}: {error}")
  if not found and invitation.route == "local":
    raise reshard.UnsupportedError(f"no layout of this engine is known; {'; '.join(why)}")
  return found


def _traced(
  model: torch.nn.Module,
  model_config: Any,
  invitation: Invitation,
  quant: Quantisation | None,
  rank: int,
) -> reshard.Layout:
  """Learned from the model's own loader."""
  from reshard import tracing

  weights = manifest.model_of(invitation.tensors)
  return tracing.traced(
    lambda _: reload.unloaded(model, model_config),
    lambda module, weights: cast(Any, module).load_weights(weights),
    weights if quant is None else quant.of(reshard.layout("hf", weights), files=True),
    ranks=[rank],
    method="recording",
    name="engine",
  )


def _family(
  model: torch.nn.Module, parallel: Any, invitation: Invitation, quant: Quantisation | None
) -> reshard.Layout:
  """By the closed form of the family `vllm`, for architectures that have one."""
  if not invitation.config:
    raise reshard.UnsupportedError("the trainer's model has no config.json")
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
    layout = reshard.layout(text, own)
    return layout if quant is None else quant.of(layout)


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
    and why_not(live.device) is None
    and live.layout == torch.strided
  )


def _dtype_name(dtype: torch.dtype) -> str:
  return str(dtype).removeprefix("torch.")
