# SPDX-License-Identifier: Apache-2.0
"""What Megatron's full tensors are made of, by the mappings of Megatron-Bridge.

Megatron-Bridge has a class for each architecture that says which tensors of a checkpoint make a parameter, and how.
Each rank lets it make the parameters that the rank holds, as they would be on one rank, from tensors without values, and
sees what ends up where (reshard.tracing). Two loads with values then prove it.
"""

from __future__ import annotations

import contextlib
import copy
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

import reshard
from reshard.live._modules import chunks_of, plain
from reshard.live._parts import Held
from reshard.tracing import trace
from reshard.tracing._types import torch_dtype

HINT = "Megatron-Bridge has no mapping for it, or what it is made of is not in the model"


def composed(bridge: Any, modules: Any, held: Iterable[Held], model: reshard.Model) -> str:
  """What this rank's full tensors are made of: a layout of one rank as `explicit:` reads it; "" if nothing is known.

  bridge  a MegatronModelBridge of the model's class, or an AutoBridge
  held    what the rank holds; full tensors for which there is no mapping are left out

  Raises InvalidArgumentError for what is no bridge, and TracingError for a mapping that computes other values than those
  of the known maps.
  """
  made = model_bridge(bridge)
  if not callable(getattr(made, "mapping_registry", None)):
    raise reshard.InvalidArgumentError(f"bridge: a {type(bridge).__name__} has no mapping_registry()")
  registry, names = made.mapping_registry(), {t.name for t in model.tensors}
  wholes = {plain(one.whole): one for one in held}
  mappings = {}
  for whole in wholes:
    mapping = registry.megatron_to_hf_lookup(whole)
    if mapping is not None and set(parts_of(mapping).values()) <= names:
      mappings[whole] = mapping
  if not mappings:
    return ""

  mapped = {whole: wholes[whole] for whole in mappings}
  # Mappings of experts in one tensor tell by a parameter's shape how the file stores them.
  stacked = [mapped[whole] for whole, mapping in mappings.items() if getattr(mapping, "is_grouped_export", False)]
  with _one_rank(), owners_of(modules) as owners, _whole_parameters(owners, stacked):

    def load(module: torch.nn.Module, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
      given, own, loader = dict(weights), dict(module.named_parameters()), fresh(made)
      for whole, mapping in mappings.items():
        value = mapping.hf_to_megatron(taken(loader, mapping, given), owners[wholes[whole].name])
        own[whole].data[: value.shape[0]].copy_(value)  # a padded vocabulary has more rows

    found = trace(lambda _: _built(mapped), load, model, name="megatron-bridge", omit=False)
  return text_of(found.layout)


def text_of(layout: reshard.Layout) -> str:
  """A layout as `explicit:` reads it."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "layout.json")
    layout.save(path)
    return path.read_text()


def model_bridge(bridge: Any) -> Any:
  """The MegatronModelBridge of an AutoBridge, which makes a new one each time and tells it the config when it loads."""
  made = getattr(bridge, "_model_bridge", bridge)
  if made is not bridge:
    made.hf_pretrained = bridge.hf_pretrained
    made.hf_config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
  return made


def fresh(bridge: Any) -> Any:
  """A copy of a bridge with empty caches: bridges cache what they load."""
  found = copy.copy(bridge)
  for name, value in vars(type(bridge)()).items():
    if isinstance(value, dict | list | set):
      setattr(found, name, value)
  return found


@contextlib.contextmanager
def owners_of(modules: Any) -> Iterator[dict[str, torch.nn.Module]]:
  """{name of a tensor: the module that has it}. Mappings read the config of a module; one without borrows its model's."""
  found: dict[str, torch.nn.Module] = {}
  borrowed: list[Any] = []
  for chunk in chunks_of(modules):
    for prefix, part in chunk.module.named_modules():
      if not hasattr(part, "config"):
        part.config = chunk.module.config
        borrowed.append(part)
      for key in (*part._parameters, *part._buffers):
        found[chunk.front + (f"{prefix}.{key}" if prefix else key)] = part
  try:
    yield found
  finally:
    for part in borrowed:
      del part.config


@contextlib.contextmanager
def _whole_parameters(owners: Mapping[str, torch.nn.Module], held: Iterable[Held]) -> Iterator[None]:
  """Gives modules these parameters as they would have them on one rank, without memory."""
  before = []
  for one in held:
    own, key = owners[one.name]._parameters, one.name.rpartition(".")[2]
    was = own.get(key)
    if was is not None and tuple(was.shape) != one.shape:
      before.append((own, key, was))
      own[key] = torch.nn.Parameter(torch.empty(one.shape, dtype=was.dtype, device="meta"), requires_grad=False)
  try:
    yield
  finally:
    for own, key, was in before:
      own[key] = was


def parts_of(mapping: Any) -> dict[str, str]:
  names = mapping.hf_param
  return {"": names} if isinstance(names, str) else dict(names)


def taken(bridge: Any, mapping: Any, given: Mapping[str, torch.Tensor]) -> Any:
  """The checkpoint's tensors as a mapping takes them."""
  change = getattr(bridge, "maybe_modify_loaded_hf_weight", None)
  if change is not None:
    return change(mapping.hf_param, given)
  if isinstance(mapping.hf_param, str):
    return given[mapping.hf_param]
  return {part: given[name] for part, name in mapping.hf_param.items()}


def _built(held: Mapping[str, Held]) -> torch.nn.Module:
  """A module that has full tensors as parameters, by their names."""
  root = torch.nn.Module()
  for name, one in held.items():
    at = root
    *path, last = name.split(".")
    for step in path:
      if step not in at._modules:
        at.add_module(step, torch.nn.Module())
      at = at.get_submodule(step)
    value = torch.empty(one.shape, dtype=torch_dtype(one.dtype))
    at.register_parameter(last, torch.nn.Parameter(value, requires_grad=False))
  return root


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
  """Lets Megatron-Bridge's mappings make parameters as on one rank of tensor parallelism: they send nothing."""
  module = sys.modules.get("megatron.bridge.models.conversion.param_mapping")
  mapping = getattr(module, "MegatronParamMapping", None)
  if mapping is None or not {"tp_size", "tp_rank"} <= vars(mapping).keys():
    raise reshard.UnsupportedError("bridge: this release of Megatron-Bridge has no MegatronParamMapping with a tp_size")
  before = {name: vars(mapping)[name] for name in ("tp_size", "tp_rank")}
  mapping.tp_size, mapping.tp_rank = 1, 0
  try:
    yield
  finally:
    for name, was in before.items():
      setattr(mapping, name, was)
