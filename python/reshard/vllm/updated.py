# SPDX-License-Identifier: Apache-2.0
"""A model of a worker that a trainer updates: the engine's own, and its draft model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import reshard
import torch
from reshard import _manifest as manifest
from reshard.engines import checking
from reshard.engines.invitation import Invitation, InvitedLink
from reshard.engines.model_part import ModelPart
from reshard.engines.parts import DRAFT
from reshard.vllm import routes

if TYPE_CHECKING:
  from reshard.check import Report

__all__ = ["Updated", "updated"]


class Updated:
  """A model of this worker, which of the trainer's tensors it takes, and the route by which it gets them.

  model, config   and vLLM's ModelConfig of it. Borrowed
  parallel        the engine's parallel_config, if the model is cut by it
  said            the trainer's invitation
  rank            of this worker among the engine's
  prefix          of its tensors' names among all that the trainer sends: DRAFT for a draft model
  shared          modules that belong to another updated model, too, and are updated with that one

  Errors: UnsupportedError as of routes.candidates().
  """

  def __init__(
    self,
    model: torch.nn.Module,
    config: Any,
    parallel: Any,
    said: Invitation,
    rank: int,
    prefix: str = "",
    shared: Sequence[torch.nn.Module] = (),
  ) -> None:
    self.prefix = prefix
    self._model, self._config, self._rank = model, config, rank
    own = {module for module in model.modules() if any(p is not None for p in module._parameters.values())}
    self._shared = own.intersection(shared)
    self._part = ModelPart(said, prefix)
    self._said, self._wanted = self._part.said, self._part.wanted
    table = self._said.tensors
    self.quant = routes.quantisation_of(config, self._said) if table else None
    if prefix and self.quant is not None:
      raise reshard.UnsupportedError("the engine's draft model is quantised: only plain ones are updated")
    self._found = {}
    if table:
      self._found = routes.candidates(model, config, parallel, self._said, self.quant, rank, self._shared)
    self._route: routes.Route | None = None

  @property
  def found(self) -> list[str]:
    """The ways in which a local layout was found."""
    return list(self._found)

  def choose(self, messages: Sequence[Sequence[str]]) -> str:
    """Takes a route that all workers have, whose `found` are the messages; its name.

    Errors: UnsupportedError if there is none, but the trainer asks for one.
    """
    if not self._said.tensors:
      return "nothing"
    common = [way for way in self._found if all(way in other for other in messages)]
    if common:
      layout = self._found[common[0]]
      self._route = routes.LocalRoute(
        self._model, layout, self._rank, self._said.in_place, self._shared, self._wanted
      )
      return common[0]
    if self._shared:
      raise reshard.UnsupportedError(
        "the draft model shares layers with its target, so it gets its own parts only, but their layout is not known; "
        "the engine's log says why"
      )
    if self._said.route == "local":
      raise reshard.UnsupportedError("no layout of this engine is known; its log says why")
    self._route = routes.CheckpointRoute(self._said, self.quant)
    return self._route.name

  @property
  def holds(self) -> manifest.Manifest:
    """What this worker receives, in the numbers and names of all that the trainer sends."""
    return self._part.holds(self._route.holds, self.prefix) if self._route else []

  @property
  def live(self) -> Mapping[str, torch.Tensor]:
    """Those that a refit writes into the model's own memory, by name."""
    return {self.prefix + name: t for name, t in self._route.live.items()} if self._route else {}

  def apply(self, arrived: routes.Arrived) -> None:
    """Puts what has arrived into the model. After an error it is torn."""
    if self._route:
      self._route.apply(self._model, self._config, lambda name: arrived.raw(self.prefix + name))

  def check(self, link: InvitedLink, source: reshard.Layout, vllm_config: Any, device: torch.device) -> Report:
    """Compares the model with a fresh load of what the trainers hold. Collective over them and the engine's workers."""
    from reshard.check.vllm import check_model

    way = routes.CheckpointRoute(self._said, self.quant)
    holds = self._part.holds(way.holds, self.prefix)
    whole = checking.WholeTensors(link, source, holds, self.quant)

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
      for name, tensor in whole.receive():
        form = way.forms[name.removeprefix(self.prefix)]
        yield form.name, form.view(routes.bytes_of(tensor)).clone()

    rank, anyone = link.rank - link.invitation.ranks.start, lambda mine: checking.differs(link, mine)
    return check_model(self._model, vllm_config, device, weights, model_config=self._config, rank=rank, anyone=anyone)


def updated(
  said: Invitation, rank: int, model: torch.nn.Module, vllm_config: Any, draft: tuple[torch.nn.Module, Any] | None
) -> list[Updated]:
  """The models that a trainer updates: the engine's and, if its invitation says so, the draft model.

  draft  the draft model and its ModelConfig, if vLLM has said which

  Errors: UnsupportedError if there is no draft model; as of routes.candidates().
  """
  own = Updated(model, vllm_config.model_config, vllm_config.parallel_config, said, rank)
  if said.draft_config is None:
    return [own]
  if draft is None:
    raise reshard.UnsupportedError("the trainer updates a draft model, and the engine has none")
  return [own, Updated(*draft, None, said, rank, DRAFT, list(model.modules()))]
