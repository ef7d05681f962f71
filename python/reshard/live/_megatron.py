# SPDX-License-Identifier: Apache-2.0
"""Layouts from live modules of Megatron-Core: reshard.of_modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

import reshard
from reshard import _core
from reshard._arguments import checked
from reshard._collective import gathered
from reshard.live._bridge import HINT as BRIDGE_HINT, composed
from reshard.live._modules import held_by, names_of, values_of
from reshard.live._ranks import FullTensors, Ranks, unpacked

if TYPE_CHECKING:
  from torch.distributed import ProcessGroup as TorchGroup

# Megatron pads the vocabulary of these.
_VOCABULARY = re.compile(r"(?:^|\.)(?:embedding\.word_embeddings|output_layer)\.weight$")
HINT = "give the layout of one rank that has it as full=, or no model"


@checked
def of_modules(
  modules: Any,
  model: _core.Model | None = None,
  *,
  group: TorchGroup | _core.ProcessGroup | None = None,
  full: _core.Layout | None = None,
  bridge: Any = None,
  offset: int = 0,
  name: str = "megatron",
  timeout: float = 60.0,
) -> _core.Layout:
  """The layout in which ranks hold live modules of Megatron-Core, from what these say of themselves.

      source = reshard.of_modules(modules, model)  # on every rank of the group

  modules  this rank's: a list with the chunks of its pipeline stage (one without virtual stages), as
           get_model() returns it, or one module; with or without wrappers (Float16Module,
           DistributedDataParallel). A module with refit_modules() names its parts itself. [] or None:
           this rank holds nothing and is not in the layout
  model    whose tensors these are made of, in the names of its checkpoint. None: a model of the full
           tensors of Megatron itself, under names that all ranks agree on: layers and experts have
           their numbers in the whole model. `of_modules(trainer).model` is that for the other side of
           a refit
  group    a process group of torch.distributed, by default that of all processes, or a
           reshard.ProcessGroup. Ranks of the layout are those of the group. All of them call: one
           all-gather tells each what the others hold
  full     what Megatron's full tensors are made of: a layout of one rank over `model`, by default
           reshard.layout("megatron:...", model) with the keys that names and configs of the modules
           tell (norms, experts, mamba_names, mtp_names, mla_down, gamma, glu_interleave)
  bridge   Megatron-Bridge's AutoBridge, or MegatronModelBridge, of the model's class: what it loads into
           each parameter says what full tensors are made of, for classes that `megatron:` does not know
  offset   added to every rank
  name     of the layout, and of the model if None is given
  timeout  seconds until DeadlineError, if `group` is a reshard.ProcessGroup; torch has its own

  Read are the attributes of parameters (tensor_model_parallel, partition_dim, partition_stride,
  partition_sizes, allreduce), layer_number, persistent buffers, the config and the process groups of
  the module (pg_collection, else those of parallel_state). module_tensors(modules) are the tensors
  under the names of the layout.

  Raises NotFoundError for a tensor that the model lacks, InvalidArgumentError for one of another
  shape than the model's and for what is no module; both name the parameter. An error on one rank is
  raised on all.
  """

  def describe() -> dict[str, Any]:
    held = held_by(modules)
    said = {"held": [one.pack() for one in held], "keys": values_of(modules)}
    return said if bridge is None else said | {"full": composed(bridge, modules, held, cast("_core.Model", model))}

  if bridge is not None and (model is None or full is not None):
    raise reshard.InvalidArgumentError("of_modules: bridge= needs a model, and takes the place of full=")
  return of_descriptions(told(group, modules, describe, "of_modules", timeout), model, full, offset, name)


def told(group: Any, modules: Any, describe: Callable[[], Any], what: str, timeout: float) -> list[Any]:
  """What describe() returned on each rank; None for one without modules. Collective, as `gathered()`.

  what  names the call in errors
  """
  if group is None and not dist.is_initialized():
    raise reshard.InvalidArgumentError(
      f"{what}: torch.distributed is not initialised; give a reshard.ProcessGroup as group="
    )
  nothing = modules is None or (isinstance(modules, list | tuple) and not modules)
  return gathered(group, (lambda: None) if nothing else describe, what, timeout)


def of_descriptions(
  said: Iterable[Mapping[str, Any] | None],
  model: _core.Model | None = None,
  full: _core.Layout | None = None,
  offset: int = 0,
  name: str = "megatron",
) -> _core.Layout:
  """The layout of ranks that described themselves; None: one that holds nothing."""
  answers = list(said)
  ranks = unpacked([None if a is None else a["held"] for a in answers], offset)
  bridged = any(a is not None and "full" in a for a in answers)
  if model is None or (full is None and model.config is None and not bridged):  # full tensors are the model's
    return FullTensors(model).layout(name, ranks, HINT)
  for held in (h for here in ranks.values() for h in here):
    if ".adapter." in held.name or ".to_wrap." in held.name:
      raise reshard.UnsupportedError(
        f"'{held.name}' belongs to an adapter of Megatron-Bridge: call reshard.lora.of_modules() (docs/lora.md)"
      )
  if full is not None:
    return FullTensors(model, [full]).layout(name, ranks, HINT)
  fulls, hint = full_tensors(ranks, [a for a in answers if a is not None], model)
  return FullTensors(model, fulls).layout(name, ranks, hint)


def full_tensors(
  ranks: Ranks, said: Sequence[Mapping[str, Any]], model: _core.Model
) -> tuple[list[_core.Layout], str]:
  """Layouts of one rank with what Megatron's full tensors are made of, by the ranks' bridges or else in the dialect of
  their modules; and what may be wrong with a tensor that none has."""
  if any("full" in a for a in said):
    texts = dict.fromkeys(a["full"] for a in said if a["full"])
    return [_core.explicit_layout(text, model) for text in texts], BRIDGE_HINT
  return [_core.layout(_notation(ranks, [a["keys"] for a in said]), model)], HINT


def _notation(ranks: Ranks, values: list[dict[str, str]]) -> str:
  everything = [held for here in ranks.values() for held in here]
  keys = names_of([held.name for held in everything])
  for of_rank in values:
    for key, value in of_rank.items():
      if keys.setdefault(key, value) != value:
        raise reshard.InvalidArgumentError(f"of_modules: {key} is {keys[key]} on some ranks, {value} on others")
  rows = max((h.shape[0] for h in everything if _VOCABULARY.search(h.whole)), default=0)
  if rows > 0:
    keys["vocab_multiple"] = str(rows)
  return "megatron:" + ",".join(f"{key}={value}" for key, value in keys.items())
