# SPDX-License-Identifier: Apache-2.0
"""The trainer of an SGLang engine. Does not import SGLang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import reshard
from reshard.engines.invitation import InvitedLink
from reshard.engines.trainer import EngineTrainer
from reshard.lora._config import as_dict, for_inference
from reshard.sglang.client import EngineClient

__all__ = ["Adapter", "Trainer"]

@dataclass(frozen=True)
class Adapter:
  """An adapter that the engine has loaded: with `--lora-paths NAME=FOLDER`, or by load_lora_adapter(NAME, FOLDER).

  name    under which requests ask for it
  config  a peft.LoraConfig, or the dict in its adapter_config.json; None: as the engine has loaded it
  """

  name: str
  config: Any = None

  def said(self) -> dict[str, Any]:
    """As JSON. Raises UnsupportedError for adapters that are more than A and B."""
    return {"name": self.name, "config": None if self.config is None else for_inference(as_dict(self.config))}


class Trainer(EngineTrainer):
  """Updates the weights of a running SGLang engine from tensors in any layout.

  Every rank of the trainer makes one, with equal arguments but for `rank`, `tensors` and `engine`,
  and calls `update()` after a training step. Collective, with the engine's workers. Each byte moves
  once, from the rank that has it to the workers that lack it; no rank gathers whole tensors.

  The engine must have been started with `--custom-weight-loader reshard.sglang.load`.

  layout      of the trainer, over the ranks [0, size).
  tensors     this rank's local tensors, by the layout's names: all on the host, or all on one GPU.
              Their addresses must not change.
  engine      of rank 0: see `EngineClient`; a list of several, which each update brings to one version
              (docs/targets.md). None on other ranks.
  workers     of the engine; of several a list. By default they are asked.
  rank, size  of this process among the trainer's.
  url, job, secret
              where the group meets, its name and its secret; rank 0 makes them by default, and the
              others learn them through the default group of torch.distributed (see `reshard.join`).
  transport   "shm" within a host; see `reshard.join`.
  route       how a worker takes its weights: "local" (its own parts only, as its loader would leave
              them), "checkpoint" (all tensors, through `load_weights`) or "auto" (local if its
              layout can be found out, else checkpoint).
  verify      compare fingerprints of what was sent and what arrived, before it is used.
  deadline    seconds for joining, and for the refit of an update.
  only        patterns of the tensors to update ("*" matches any characters, "#" a number), also of the draft
              model ("draft:*") and of adapters, each of which is updated whole. A worker updates the
              parameters of its own that hold something of them, each as a whole: with a query projection also key
              and value, with an expert all of its layer; with whole tensors (`route`) everything. Others are neither
              planned nor sent, and keep their values. By default everything in the layout.
  draft       a reshard.sglang.Draft: the engine's draft model (speculative decoding), which is updated with the
              model, as one version. docs/sglang.md.
  adapters    {name: reshard.sglang.Adapter}: LoRA adapters in the layout that the engine has loaded, which are
              updated with the model, as one version. docs/lora.md.
  merge       {name: peft.LoraConfig or dict}: LoRA adapters in the layout that are merged into what is
              sent; see `reshard.lora.Merge`.
  snapshot    each update sends a copy of this rank's tensors, in host memory as large as they are, so that
              they may be written as soon as `update_async()` returns.
  on_phase    called when this rank enters a phase of an update: "begin", "transfer", "check",
              "commit", "committed". An exception ends the update on all ranks.

  Errors: ValueError for arguments; DeadlineError and AbortedError if a rank is missing or dies;
  UnsupportedError if a worker cannot take the model; TornError if a worker could not load what had
  arrived; RuntimeError with the engine's message. A worker that cannot join also says why in the
  engine's log.
  """

  def __init__(
    self,
    layout: reshard.Layout,
    tensors: Mapping[str, Any],
    *,
    engine: Any = None,
    workers: int | Sequence[int] | None = None,
    **options: Any,
  ) -> None:
    for name in ("client", "in_place", "pause"):
      if name in options:
        raise ValueError(f"{name}= is not for SGLang")
    if options.get("adapters"):
      options["adapters"] = _adapters(options["adapters"])
    drafts = options.get("draft") is not None
    client: Any = None
    if isinstance(engine, Sequence):
      of_each = workers if isinstance(workers, Sequence) else [workers] * len(engine)
      client = [EngineClient(one, its, drafts) for one, its in zip(engine, of_each, strict=True)]
    elif engine is not None:
      client = EngineClient(engine, workers if isinstance(workers, int) else None, drafts)
    super().__init__(layout, tensors, client=client, workers=workers, **options)

  def _show_draft(self, link: InvitedLink) -> None:
    """Does nothing: SGLang calls the loader for its draft models, too."""


def _adapters(given: Mapping[str, Any]) -> dict[str, Adapter]:
  """Raises ValueError for what is no adapter of SGLang, and for two of one name."""
  found: dict[str, Adapter] = {}
  for name, one in given.items():
    adapter = Adapter(**one) if isinstance(one, Mapping) else one
    if not isinstance(adapter, Adapter):
      raise ValueError(f"adapters= of '{name}': a reshard.sglang.Adapter, not {type(adapter).__module__}.{type(adapter).__name__}")
    if adapter.name in (other.name for other in found.values()):
      raise ValueError(f"adapters= names '{adapter.name}' twice")
    found[name] = adapter
  return found
