# SPDX-License-Identifier: Apache-2.0
"""A model of an SGLang worker that a trainer updates: the engine's own, or a draft model."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import reshard
import torch
from reshard import _manifest as manifest
from reshard import tracing
from reshard._names import listed
from reshard.engines.invitation import Invitation
from reshard.engines.model_part import ModelPart
from reshard.engines.parts import DRAFT
from reshard.tracing._derived import derive, nothing_derived
from reshard.tracing._modules import named_tensors as tensors_of

__all__ = ["UpdatedModel", "forms_of", "updated_models"]

_log = logging.getLogger(__name__)


class UpdatedModel:
  """One model of this worker, and how it takes what a trainer sends of it.

  model    of SGLang. Borrowed
  said     the trainer's invitation, of all that it sends
  rank     of this worker among the engine's
  draft    the number of a draft model; None: the engine's own
  shared   addresses of tensors that another model updates

  Attributes: `is_known`, whether the worker's own layout of this model is.

  Errors: UnsupportedError if the model's loader refuses the trainer's names or shapes, or would leave parameters as
  they are.
  """

  def __init__(
    self,
    model: torch.nn.Module,
    said: Invitation,
    rank: int,
    draft: int | None = None,
    shared: Collection[int] = (),
  ) -> None:
    self._ref = weakref.ref(model)  # the worker of a model lives as long as the model
    self._part = ModelPart(said, "" if draft is None else DRAFT)
    self._label = "" if draft is None else f"draft{draft}:"
    self._shared = {name for name, t in tensors_of(model).items() if t.numel() and t.data_ptr() in shared}
    self._whole = False
    self._holds: manifest.Manifest | None = []
    if self._part.said.tensors:
      self._holds = _local(model, self._part, rank, self._shared)
    self.is_known = self._holds is not None

  def choose(self, known: bool) -> None:
    """Takes this worker's own parts, if the layouts of all workers are known, else whole tensors.

    Errors: UnsupportedError if whole tensors will not do.
    """
    if known:
      return
    if self._part.said.route == "local":
      raise reshard.UnsupportedError("the layout of this engine is not known; its log says why")
    if self._shared:
      raise reshard.UnsupportedError(
        f"the draft model shares {listed(sorted(self._shared))} with its target, so it gets its own parts only, but "
        "their layout is not known; the engine's log says why"
      )
    self._whole = True
    self._holds = manifest.describe(reshard.layout("hf", manifest.model_of(self._part.said.tensors)), 0)

  @property
  def model(self) -> torch.nn.Module:
    """SGLang's."""
    model = self._ref()
    assert model is not None
    return model

  @property
  def holds(self) -> manifest.Manifest:
    """What this worker receives of it."""
    return self._part.holds(self._holds or [], self._label)

  @property
  def route(self) -> str:
    """As logs call it."""
    return "whole tensors" if self._whole else "local tensors" if self._holds else "nothing"

  def apply(self, arrived: Mapping[str, torch.Tensor]) -> None:
    """Puts what has arrived into the model. After an error it is torn."""
    own = {held["name"]: arrived[self._label + held["name"]] for held in self._holds or ()}
    if self._whole:
      cast(Any, self.model).load_weights(iter(own.items()))
    elif own:
      live = tensors_of(self.model)
      with torch.no_grad():
        for name, tensor in own.items():
          live[name].copy_(tensor.view(live[name].shape))

  def derive(self) -> None:
    """Derives anew what SGLang derives from parameters. After an error the model is torn."""
    if not self._whole and (self._holds or self._shared):
      with torch.no_grad():
        derive(self.model)


def updated_models(
  said: Invitation, rank: int, model: torch.nn.Module, drafts: Sequence[torch.nn.Module]
) -> list[UpdatedModel]:
  """The models that a trainer updates: the engine's and, if its invitation says so, the draft models."""
  found = [UpdatedModel(model, said, rank)]
  shared = _addresses(model)
  if said.draft_config is not None:
    for i, draft in enumerate(drafts):
      found.append(UpdatedModel(draft, said, rank, i, shared))
      shared |= _addresses(draft)
  return found


def forms_of(models: Sequence[UpdatedModel]) -> list[Any]:
  """The names, shapes and dtypes of their tensors."""
  return [[(name, tuple(t.shape), t.dtype) for name, t in tensors_of(updated.model).items()] for updated in models]


def _addresses(model: torch.nn.Module) -> set[int]:
  return {t.data_ptr() for t in tensors_of(model).values() if t.numel()}


def _moves_experts() -> bool:
  """Whether SGLang balances the load of experts, which moves them between slots while it serves."""
  try:
    from sglang.srt import runtime_context
  except ImportError:
    try:
      from sglang.srt.server_args import get_global_server_args
    except ImportError:
      return False
    options = get_global_server_args()
  else:
    options = runtime_context.get_exec().moe
  return any(getattr(options, name, None) for name in ("enable_eplb", "elastic_ep_backend"))


def _local(
  model: torch.nn.Module, part: ModelPart, rank: int, shared: Collection[str]
) -> manifest.Manifest | None:
  """What this worker receives, as its own load_weights() would leave it; None if that is not known.

  shared  names of tensors that another model updates

  Raises UnsupportedError if load_weights() refuses the trainer's names or shapes: it would refuse
  them again when it is too late. SGLang's skips names that it does not know; so it is an error, too,
  if a parameter would get nothing.
  """
  if part.said.route == "checkpoint":
    return None
  if _moves_experts():
    # load_weights() looks up where experts lie at each update; a layout made once would be out of date.
    _log.warning("reshard: this engine gets whole tensors: enable_eplb moves experts between slots")
    return None
  live = tensors_of(model)
  try:
    holds = _traced(model, part.said, rank, live)
  except Exception as error:
    if not isinstance(error, reshard.Error) and "meta" not in str(error):  # torch's word for no memory
      raise reshard.UnsupportedError(
        f"this engine's loader refuses the trainer's tensors: {error!r}"
      ) from error
    _log.warning("reshard: this engine gets whole tensors: %s", error)
    return None
  filled = {id(live[name]) for name in [entry["name"] for entry in holds] + list(shared)}
  empty = [name for name, parameter in model.named_parameters() if id(parameter) not in filled]
  if empty:
    raise reshard.UnsupportedError(
      f"this engine's loader takes none of the trainer's tensors for {listed(empty)}; "
      "with route='checkpoint' these keep their values"
    )
  numbers = {entry[0]: i for i, entry in enumerate(part.said.tensors)}
  wanted = set(numbers.values()) if part.wanted is None else {numbers[name] for name in part.wanted}
  return [
    entry
    for entry in holds
    if entry["name"] not in shared and any(piece["tensor"] in wanted for piece in entry["parts"])
  ]


def _traced(
  model: torch.nn.Module, said: Invitation, rank: int, live: Mapping[str, torch.Tensor]
) -> manifest.Manifest:
  """What load_weights() fills, in the dtypes of the engine's parameters."""
  with nothing_derived(model):
    layout = tracing.traced(
      lambda _: model,
      lambda module, weights: cast(Any, module).load_weights(weights),
      manifest.model_of(said.tensors),
      ranks=[rank],
      method="recording",
      name="engine",
    )
  holds = []
  for entry, tensor in zip(manifest.describe(layout, rank), layout.local(rank), strict=True):
    own = live[entry["name"]]
    if tuple(own.shape) != tuple(tensor.shape):
      shapes = f"{list(tensor.shape)}, but lies as {list(own.shape)}"
      raise reshard.UnsupportedError(f"'{tensor.name}' is loaded as {shapes}")
    holds.append({**entry, "dtype": str(own.dtype).removeprefix("torch.")})
  return holds
