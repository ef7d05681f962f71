# SPDX-License-Identifier: Apache-2.0
"""Puts weights into a live vLLM model.

vLLM's *layerwise reload* brings a layer back to the form in which a checkpoint is loaded, loads it,
runs `process_weights_after_loading` and copies the result into the storage that kernels and CUDA
graphs hold. Two entrances lead into it:

* `load_checkpoint`: tensors under the names of a checkpoint, whole, through the model's own
  `load_weights`;
* `load_local`: this worker's own tensors, as its loader would have left them (shards, fused and
  padded), layer by layer, without `load_weights`.

Both repair what the reload alone leaves stale (`_prepare`, `_finish`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from vllm.model_executor.model_loader import reload as _reload
from vllm.model_executor.model_loader.reload import layerwise as _layerwise
from vllm.model_executor.model_loader.reload import meta as _meta

__all__ = [
  "LoadTensor",
  "is_attention",
  "load_checkpoint",
  "load_local",
  "load_tensors",
  "process",
  "restore",
  "unloaded",
  "without_adapters",
]

_SKIP_LOAD: set[str] = set(_meta.SKIP_LOAD_TENSORS)


@dataclass(frozen=True)
class LoadTensor:
  """A parameter or buffer of a module in the form in which a checkpoint is loaded."""

  module: torch.nn.Module
  attribute: str
  shape: tuple[int, ...]
  dtype: torch.dtype
  parameter: bool


class _Modules:
  """Some modules of a model, in the place of a model: the reload only asks for `modules()`."""

  def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
    self._modules = list(modules)

  def modules(self) -> Iterator[torch.nn.Module]:
    return iter(self._modules)


def load_tensors(model: torch.nn.Module) -> dict[str, LoadTensor]:
  """The parameters and buffers of a model by name, in the form in which a checkpoint is loaded.

  A parameter that two modules share (tied embeddings) appears once, under its first name.
  """
  found: dict[str, LoadTensor] = {}
  seen: set[int] = set()
  for prefix, module in model.named_modules():
    parameters, buffers = _layerwise.get_layerwise_info(module).restore_metadata
    live = dict(module._parameters) | dict(module._buffers)
    for name, tensor in {**live, **parameters, **buffers}.items():
      now = live.get(name)
      # Such a buffer that is not recorded shares a parameter's memory: it goes when a reload begins, and comes back at its end.
      alias = name in module._non_persistent_buffers_set and name not in buffers and name not in _SKIP_LOAD
      if tensor is None or alias or (now is not None and id(now) in seen):
        continue
      seen.add(id(now))
      is_parameter = name in parameters or (name not in buffers and name in module._parameters)
      full = f"{prefix}.{name}" if prefix else name
      found[full] = LoadTensor(module, name, tuple(tensor.shape), tensor.dtype, is_parameter)
  return found


def load_checkpoint(
  model: torch.nn.Module, model_config: Any, weights: Iterable[tuple[str, torch.Tensor]]
) -> None:
  """Loads a whole checkpoint into a live model, through `load_weights`.

  Errors: those of `load_weights` and of `process_weights_after_loading`; the model is torn then.
  """
  _prepare(model.modules())
  _begin(model)
  cast(Any, model).load_weights(weights)
  _reload.finalize_layerwise_reload(model, model_config)
  _finish(model, model.modules())


def load_local(
  model: torch.nn.Module,
  model_config: Any,
  tensors: Mapping[str, torch.Tensor],
  written: Iterable[torch.nn.Module] = (),
) -> None:
  """Loads this worker's own tensors into a live model, one layer after the other.

  tensors  by the names of `load_tensors`, with its shapes and dtypes. Tensors of the same layers
           that are missing here keep their values.
  written  modules whose own memory has been written; those that share it are processed too.

  Errors: ValueError for a name, a shape or a missing tensor, before anything has changed; those of
  `process_weights_after_loading`, after which the model is torn.
  """
  layers = _by_layer(model, tensors)
  _prepare(layers)
  for module, values in layers.items():
    _load_layer(module, model_config, values)
  deferred = [m for m in model.modules() if m not in layers and is_attention(m)]
  if deferred:  # they derive tensors of other layers' weights, as MLA does
    _begin(_Modules(deferred))
    _reload.finalize_layerwise_reload(_Modules(deferred), model_config)
  _finish(model, [*layers, *written])


def process(module: torch.nn.Module) -> None:
  """Runs `process_weights_after_loading` on a module whose own memory has been written."""
  method: Any = getattr(module, "quant_method", None)
  if hasattr(method, "process_weights_after_loading"):
    method.process_weights_after_loading(module)


@contextlib.contextmanager
def unloaded(model: torch.nn.Module, model_config: Any) -> Iterator[torch.nn.Module]:
  """The model as it is before its first load, without memory; afterwards it is what it was.

  Its loaders may write into its parameters, and replace them.
  """
  _begin(model)
  try:
    for module in model.modules():
      for name, tensor in list(module._parameters.items()):
        if tensor is not None:
          # Copies: the recorded ones are for later reloads, and some (biases) are the live ones.
          module._parameters[name] = cast(torch.nn.Parameter, _unwrapped(tensor))
      for name, buffer in list(module._buffers.items()):
        if buffer is not None and buffer.is_meta:  # others are tables, which loaders read
          module._buffers[name] = _unwrapped(buffer)
    yield model
  finally:
    level = _layerwise.logger.level
    _layerwise.logger.setLevel(logging.ERROR)  # it would warn of every layer that nothing loaded
    try:
      _reload.finalize_layerwise_reload(model, model_config)
    finally:
      _layerwise.logger.setLevel(level)


def _unwrapped(tensor: torch.Tensor) -> Any:
  copy = _meta.to_meta_tensor(tensor)
  loader: Any = getattr(copy, "weight_loader", None)
  while getattr(loader, "__name__", "") == "online_process_loader":
    loader = loader.__wrapped__
  if loader is not None:
    copy.weight_loader = loader
  return copy


@contextlib.contextmanager
def without_adapters(model: torch.nn.Module) -> Iterator[None]:
  """The model as it was loaded: its LoRA layers give way to the layers that they wrap, and come back at the end."""
  from vllm.lora.layers import BaseLayerWithLoRA

  wrapped = [
    (parent, name, layer)
    for parent in list(model.modules())
    for name, layer in parent._modules.items()
    if isinstance(layer, BaseLayerWithLoRA)
  ]
  for parent, name, layer in wrapped:
    parent._modules[name] = cast(torch.nn.Module, layer.base_layer)
  try:
    yield
  finally:
    for parent, name, layer in wrapped:
      parent._modules[name] = layer


def restore(model: torch.nn.Module, model_config: Any) -> None:
  """Ends a reload that failed half way, as well as it can be: every layer that has not been loaded
  gets its tensors back."""
  _reload.finalize_layerwise_reload(model, model_config)


def is_attention(module: torch.nn.Module) -> bool:
  """True for modules that a reload processes last, because they derive tensors of others."""
  test = getattr(_layerwise, "is_deferred_attention_layer", None)
  if test is not None:
    return bool(test(module))
  from vllm.model_executor.layers.attention import Attention, MLAAttention

  return isinstance(module, (Attention, MLAAttention))


def _by_layer(
  model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]
) -> dict[torch.nn.Module, dict[str, torch.Tensor]]:
  expected = load_tensors(model)
  layers: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}
  for name, tensor in tensors.items():
    slot = expected.get(name)
    if slot is None:
      raise ValueError(f"the model has no tensor '{name}'")
    if tuple(tensor.shape) != slot.shape:
      raise ValueError(
        f"tensor '{name}': shape {list(tensor.shape)}, but the model loads {list(slot.shape)}"
      )
    layers.setdefault(slot.module, {})[slot.attribute] = tensor
  for name, slot in expected.items():
    values = layers.get(slot.module)
    if values is not None and slot.attribute not in values:
      live = getattr(slot.module, slot.attribute)
      if tuple(live.shape) == slot.shape:
        values[slot.attribute] = live.detach()
      elif slot.parameter:
        raise ValueError(f"no weights for '{name}', which shares a layer with others")
  return layers


def _begin(model: Any) -> None:
  """Begins a reload. vLLM asks loaders for their names, which functools.partial has not (MiniMax-M2)."""
  for module in model.modules():
    parameters, buffers = _layerwise.get_layerwise_info(module).restore_metadata
    for tensor in (*parameters.values(), *buffers.values(), *module._parameters.values()):
      loader: Any = getattr(tensor, "weight_loader", None)
      if isinstance(loader, functools.partial) and not hasattr(loader, "__name__"):
        loader.__name__ = "partial"  # type: ignore[attr-defined]
  _reload.initialize_layerwise_reload(model)


def _copy_whole(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
  param.data.copy_(loaded_weight)


def _load_layer(
  module: torch.nn.Module, model_config: Any, values: Mapping[str, torch.Tensor]
) -> None:
  in_place = {name: t for name, t in values.items() if name in _SKIP_LOAD}
  for name, tensor in in_place.items():  # the reload leaves these where they are
    live = getattr(module, name)
    if live.data_ptr() != tensor.data_ptr():
      live.data.copy_(tensor)
  one = _Modules([module])
  _begin(one)
  # The loaders of the recorded tensors give way to a plain copy, and come back at the end.
  loaders: list[tuple[Any, Any]] = []
  missing = object()
  for name in values.keys() - in_place.keys():
    param: Any = getattr(module, name)
    loaders.append((param, getattr(param, "weight_loader", missing)))
    param.weight_loader = _copy_whole
  try:
    _layerwise.initialize_online_processing(module)
    for name, tensor in values.items():
      if name not in in_place:
        param = getattr(module, name)
        param.weight_loader(param, tensor)
    _reload.finalize_layerwise_reload(one, model_config)
  finally:
    for param, loader in loaders:
      if loader is missing:
        del param.weight_loader
      else:
        param.weight_loader = loader


def _prepare(modules: Iterable[torch.nn.Module]) -> None:
  """Lets kernels of experts pack their weights again.

  On CPUs the packing of a MoE layer happens when its kernel is made, and a reload keeps the kernel
  of the first load (addresses in CUDA graphs need that, a CPU does not): raw weights would be
  copied over packed ones.
  """
  from vllm.platforms import current_platform

  if not current_platform.is_cpu():
    return
  for module in modules:
    method: Any = getattr(module, "quant_method", None)
    if getattr(method, "moe_kernel", None) is not None:
      method.moe_kernel = None


def _finish(model: torch.nn.Module, loaded: Iterable[torch.nn.Module]) -> None:
  """Repairs what a reload of some modules has left stale."""
  _copy_unpacked(model.modules())
  _share_biases(model.modules())
  _process_tied(model, loaded)


def _share_biases(modules: Iterable[torch.nn.Module]) -> None:
  """Gives kernels of experts that were made again the layer's own biases: they were made with those of the reload."""
  for module in modules:
    config: Any = getattr(getattr(module, "quant_method", None), "moe_quant_config", None)
    for part, name in (("_w1", "w13_bias"), ("_w2", "w2_bias")):
      used: Any = getattr(config, part, None)
      own, bias = module._parameters.get(name), getattr(used, "bias", None)
      if own is not None and bias is not None and bias.shape == own.shape:
        used.bias = own


def _copy_unpacked(modules: Iterable[torch.nn.Module]) -> None:
  """Brings buffers up to date that had a convolution's memory until a kernel for CPUs packed it (Mamba 2).

  The buffer keeps the weight as it was loaded, and a reload, which takes it for a part of the convolution's, leaves it.
  """
  for module in modules:
    _, recorded = _layerwise.get_layerwise_info(module).restore_metadata
    for name in module._non_persistent_buffers_set - recorded.keys() - _SKIP_LOAD:
      buffer = module._buffers.get(name)
      for child in module.children():
        unpacked: Any = getattr(child, "_cpu_unpacked_conv_weight", None)
        if buffer is not None and unpacked is not None and unpacked.shape == buffer.shape:
          buffer.data.copy_(unpacked)


def _process_tied(model: torch.nn.Module, loaded: Iterable[torch.nn.Module]) -> None:
  """Runs the processing of modules that share a parameter with a loaded one.

  A reload processes one module of each; the head of a model with tied embeddings would keep the
  weights that it packed before.
  """
  owner: dict[int, torch.nn.Module] = {}
  reloaded = set(loaded)
  for module in model.modules():
    for param in module._parameters.values():
      if param is None or owner.setdefault(id(param), module) is module:
        continue
      if owner[id(param)] in reloaded:
        process(module)
