# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of a worker of SGLang.

Its LoRAManager has an object for each adapter, whole and on the host, and slots on the device with this worker's part
of A and B of those that were used last. An update makes a new object of what has arrived, by SGLang's own class; the
commit puts it in the place of the old one, and into the adapter's slot if it has one, by SGLang's own method.
"""

from __future__ import annotations

import copy
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import reshard
import torch
from reshard import _manifest as manifest
from reshard._names import listed
from reshard.engines.invitation import Invitation
from reshard.lora._config import scale_of
from reshard.lora._names import Part, adapters_in
from reshard.tracing._types import torch_dtype

__all__ = ["Adapters"]

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"experts\.(\d+)\.")
_BUFFERS = ("A_buffer", "B_buffer", "embedding_A_buffer", "embedding_B_buffer", "lm_head_A_buffer", "lm_head_B_buffer",
            "new_embeddings_buffer")  # fmt: skip


@dataclass
class _Adapter:
  """An adapter of the trainer's, and what it is in the engine."""

  name: str  # of requests
  lora_id: str  # SGLang's
  config: Any  # a LoRAConfig
  parts: dict[str, Part]
  made: Any = None  # a LoRAAdapter, to be put in place


class Adapters:
  """The adapters that a trainer updates.

  model   of the worker. Methods that take it are called below SGLang's call of the loader

  Attributes: `untaken`, {what SGLang calls them: why} of the factors for which this worker has no place.

  Errors: UnsupportedError if the engine takes no adapters, has not loaded one of these, or would not take its ranks,
  shapes, modules or scale; InvalidArgumentError for what no trainer sends.
  """

  def __init__(self, said: Invitation, model: torch.nn.Module) -> None:
    self._forms = {str(name): (tuple(shape), str(dtype)) for name, dtype, shape, _ in said.tensors}
    self._adapters: list[_Adapter] = []
    self.untaken: dict[str, str] = {}
    found = adapters_in(self._forms) if said.adapters else {}
    if set(found) != set(said.adapters):
      raise reshard.InvalidArgumentError(
        f"adapters {sorted(said.adapters)} of the trainer, but its tensors are of {sorted(found)}"
      )
    manager = _manager_of(model) if found else None
    if found and manager is None:
      raise reshard.UnsupportedError(
        "the engine takes no adapters: start it with --enable-lora, or let the trainer merge them"
      )
    for key, parts in sorted(found.items()):
      adapter = _loaded(manager, said.adapters[key], parts)
      self._check(manager, adapter)
      self._adapters.append(adapter)

  def _check(self, manager: Any, adapter: _Adapter) -> None:
    """Makes the adapter of zeros, and puts it into a slot without memory, as an update will."""
    _check_config(adapter, {name: self._forms[name][0] for name in adapter.parts}, manager)
    zeros = {n: torch.zeros((), dtype=_dtype(self._forms[n][1])).expand(self._forms[n][0]) for n in adapter.parts}
    try:
      made = _made(manager, adapter, zeros)
      self.untaken |= _untaken(manager, made)
      _put(manager, _without_memory(manager.memory_pool), 0, adapter.lora_id, made)
    except reshard.Error:
      raise
    except Exception as error:
      raise reshard.UnsupportedError(f"SGLang refuses the adapter '{adapter.name}': {error!r}") from error

  def slots(self, model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The memory of the slots, by names for people.

    Raises UnsupportedError if the engine has other adapters than when the trainer joined.
    """
    if not self._adapters:
      return []
    manager = _manager_of(model)
    for adapter in self._adapters:
      ref = manager.lora_refs.get(adapter.lora_id)
      if ref is None or ref.lora_name != adapter.name:
        raise reshard.UnsupportedError(
          f"the engine has unloaded the adapter '{adapter.name}' since the trainer joined: make a new Trainer"
        )
    pools = [getattr(manager.memory_pool, kind) for kind in _BUFFERS]
    return [(f"LoRA slots of {module}", t) for pool in pools for module, held in pool.items() for t in _listed(held)]

  def holds(self, model: reshard.Model) -> manifest.Manifest:
    """What this worker receives: all factors, whole. `model`: of all tensors that the trainer sends."""
    mine = {name for adapter in self._adapters for name in adapter.parts}
    whole = manifest.describe(reshard.layout("hf", model), 0) if mine else []
    return [entry for entry in whole if entry["name"] in mine]

  def make(self, model: torch.nn.Module, arrived: Mapping[str, torch.Tensor]) -> None:
    """Makes new adapters of what has arrived. The engine keeps its own. Raises what SGLang raises."""
    manager: Any = _manager_of(model) if self._adapters else None
    for adapter in self._adapters:
      # The next update arrives in the same memory, before it is known to be whole.
      adapter.made = _made(manager, adapter, {name: arrived[name].clone() for name in adapter.parts})

  def apply(self, model: torch.nn.Module) -> None:
    """Puts the new adapters in the place of the old ones. After an error the engine is torn."""
    manager: Any = _manager_of(model) if self._adapters else None
    for adapter in self._adapters:
      event = getattr(manager, "pending_lora_load_events", {}).get(adapter.lora_id)
      if event is not None:  # the old one is on its way into a slot
        event.synchronize()
      manager.configs[adapter.lora_id], manager.loras[adapter.lora_id] = adapter.config, adapter.made
      pool = manager.memory_pool
      slot = pool.uid_to_buffer_id.get(adapter.lora_id)
      if slot is not None:
        pool._clear_buffer_slot_for_base(slot)
        _put(manager, pool, slot, adapter.lora_id, adapter.made)
        manager._notify_lora_slots_updated({slot})
      adapter.made = None


def _manager_of(model: torch.nn.Module) -> Any:
  """SGLang's LoRAManager of a model; None if the engine takes no adapters.

  To be called below SGLang's call of the loader, which knows the model only: the manager is its caller's.
  """
  frame: types.FrameType | None = sys._getframe(1)
  while frame is not None:
    caller = frame.f_locals.get("self")
    get_runner = getattr(caller, "get_model_runner", None)
    runner: Any = get_runner() if callable(get_runner) else caller
    if getattr(runner, "model", None) is model and hasattr(runner, "lora_manager"):
      return runner.lora_manager
    frame = frame.f_back
  return None


def _loaded(manager: Any, said: Mapping[str, Any], parts: dict[str, Part]) -> _Adapter:
  """The engine's adapter of a name, with the trainer's config, if it gave one."""
  name = str(said.get("name"))
  refs = {ref.lora_name: ref for ref in manager.lora_refs.values()}
  if name not in refs:
    raise reshard.UnsupportedError(
      f"the engine has not loaded the adapter '{name}'; its adapters are {listed(sorted(refs)) or 'none'}: "
      "start it with --lora-paths, or call load_lora_adapter() before"
    )
  ref = refs[name]
  if not ref.pinned and _forgets():
    raise reshard.UnsupportedError(
      f"with --max-loaded-loras the engine may forget the adapter '{name}' and read its old files again: load it pinned"
    )
  config = manager.configs[ref.lora_id]
  if said.get("config") is not None:
    for key in ("r", "lora_alpha", "target_modules"):
      if key not in said["config"]:
        raise reshard.InvalidArgumentError(f"the config of the adapter '{name}' has no {key}")
    config = type(config).from_dict(dict(said["config"]), base_vocab_size=manager.base_hf_config.vocab_size)
  return _Adapter(name, ref.lora_id, config, parts)


def _forgets() -> bool:
  """Whether SGLang unloads adapters that were not used for a while."""
  try:
    from sglang.srt import runtime_context
  except ImportError:
    return False
  return getattr(runtime_context.get_lora(), "max_loaded_loras", None) is not None


def _check_config(adapter: _Adapter, shapes: Mapping[str, tuple[int, ...]], manager: Any) -> None:
  """Raises UnsupportedError for a config by which SGLang would compute something else than PEFT does."""
  config, said = adapter.config, adapter.config.hf_config
  if config.r > manager.max_lora_rank:
    raise reshard.UnsupportedError(
      f"the adapter '{adapter.name}' has rank {config.r}, the engine takes at most {manager.max_lora_rank}: --max-lora-rank"
    )
  for name, part in adapter.parts.items():
    rank = shapes[name][0 if part.kind.endswith("A") else -1]
    if rank != config.r:
      raise reshard.UnsupportedError(
        f"'{name}' has rank {rank}, the config of the adapter '{adapter.name}' says {config.r}: SGLang takes one rank for all"
      )
    if scale_of(said, part.module, rank) != config.lora_alpha / config.r:
      raise reshard.UnsupportedError(
        f"use_rslora or alpha_pattern in the config of the adapter '{adapter.name}': SGLang multiplies with lora_alpha / r; "
        "let the trainer merge it"
      )
  modules = config.target_modules
  if isinstance(modules, str) and modules not in ("all", "all-linear"):
    raise reshard.UnsupportedError(f"target_modules '{modules}' of the adapter '{adapter.name}': SGLang takes a list")
  if not manager.memory_pool.can_support(config):
    raise reshard.UnsupportedError(
      f"the adapter '{adapter.name}' has modules {listed(sorted(modules))}, the engine takes "
      f"{listed(sorted(manager.target_modules))}: --lora-target-modules"
    )


def _made(manager: Any, adapter: _Adapter, tensors: Mapping[str, torch.Tensor]) -> Any:
  """SGLang's LoRAAdapter of these factors, as it makes it of files."""
  kind = type(manager.loras[adapter.lora_id])
  made = kind(
    adapter.lora_id, adapter.config, manager.base_hf_config, manager.load_config, manager.lora_backend,
    base_model=manager.base_model,
  )  # fmt: skip
  named = {part.file_name: tensors[name] for name, part in adapter.parts.items()}
  for name, tensor in named.items():
    made._process_weight(name, tensor)
  kept = {name for layer in made.layers for name in layer.weights} | set(made.embedding_layers)
  if set(named) - kept:
    raise reshard.UnsupportedError(
      f"SGLang would drop {listed(sorted(set(named) - kept))} of the adapter '{adapter.name}'"
    )
  made._normalize_weights()
  return made


def _untaken(manager: Any, made: Any) -> dict[str, str]:
  """The factors for which this worker has no module.

  Raises UnsupportedError if SGLang would put two of them into one buffer.
  """
  found: dict[str, str] = {}
  for i, layer in enumerate(made.layers):
    tails = [match[2] for name in manager.lora_modules[i] if (match := _LAYER.search(name))]
    into: dict[tuple[Any, ...], str] = {}
    for name in layer.weights:
      match = _LAYER.search(name)
      if match is None or not any(match[2].startswith(f"{tail}.") for tail in tails):
        found[name] = "no such module has adapters"
        continue
      target = max((t for t in manager.target_modules if t in name), key=len, default="")
      expert = _EXPERT.search(name)
      key = (target, "lora_A" in name, expert and expert[1], "shared_experts." in name)
      if into.setdefault(key, name) != name:
        raise reshard.UnsupportedError(f"SGLang would put '{name}' and '{into[key]}' into one buffer")
  for name in made.embedding_layers:
    module = manager.embed_tokens_module if "embed_tokens" in name else manager.lm_head_module
    if module is None:
      found[name] = "no such module has adapters"
  return found


def _without_memory(pool: Any) -> Any:
  """The pool with one slot, of tensors without memory."""
  made = copy.copy(pool)
  for kind in _BUFFERS:
    found = {}
    for module, buffers in getattr(pool, kind).items():
      metas = [torch.empty((1, *t.shape[1:]), dtype=t.dtype, device="meta") for t in _listed(buffers)]
      found[module] = metas[0] if isinstance(buffers, torch.Tensor) else metas
    setattr(made, kind, found)
  return made


def _listed(buffers: Any) -> list[torch.Tensor]:
  return [buffers] if isinstance(buffers, torch.Tensor) else list(buffers)


def _put(manager: Any, pool: Any, slot: int, lora_id: str, adapter: Any) -> None:
  """Has SGLang cut an adapter into a slot of a pool."""
  modules = (manager.lora_modules, manager.embed_tokens_module, manager.lm_head_module)
  pool.load_lora_weight_to_buffer(lora_id, slot, adapter, *modules)


def _dtype(name: str) -> torch.dtype:
  return torch_dtype(name.upper())
