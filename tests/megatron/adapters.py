# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's modules with adapters of Megatron-Bridge's own.

Its adapters import Transformer Engine for modules that need a GPU; empty classes stand for these. The adapters, and
the modules of Megatron-Core that they are made of, are the real ones.
"""

import importlib
import importlib.util
import pathlib
import sys
import types
import zlib

import torch
from building import build
from converters import EmptyModules

from reshard.live._modules import held_by, module_tensors

_ROOT = "megatron.bridge"
_OWN = ("adapter_wrapper", "base", "canonical_lora", "dora", "dora_layers", "lora", "lora_layers", "module_matcher", "recompute", "utils",
        "walk_utils")  # fmt: skip


def _import(*names):
  """Modules of megatron.bridge.peft."""
  package = pathlib.Path(importlib.util.find_spec(_ROOT).submodule_search_locations[0])
  own = {f"{_ROOT}.peft", f"{_ROOT}.utils.import_utils", *(f"{_ROOT}.peft.{name}" for name in _OWN)}
  engine = types.ModuleType("transformer_engine")
  engine.pytorch = types.ModuleType("transformer_engine.pytorch")
  engine.pytorch.Linear = type("Linear", (torch.nn.Linear,), {})
  engine.pytorch.ops = types.SimpleNamespace(Sequential=object)
  with EmptyModules(own, package).finding():
    importlib.import_module(f"{_ROOT}.peft.utils").HAVE_TE = False
    sys.modules |= {"transformer_engine": engine, "transformer_engine.pytorch": engine.pytorch}
    try:
      return [importlib.import_module(f"{_ROOT}.peft.{name}") for name in names]
    finally:
      del sys.modules["transformer_engine"], sys.modules["transformer_engine.pytorch"]


_lora, _canonical, _dora, _utils = _import("lora", "canonical_lora", "dora", "utils")
LoRA, CanonicalLoRA, DoRA = _lora.LoRA, _canonical.CanonicalLoRA, _dora.DoRA


class _Grouped(torch.nn.Module):
  """Stands for a grouped linear layer of Transformer Engine: the same parameters, of the experts' own modules."""

  def __init__(self, linears):
    super().__init__()
    for number, linear in enumerate(linears):
      self.register_parameter(f"weight{number}", linear.weight)


class SharedLoRA(LoRA):
  """LoRA of a model whose experts are grouped: those of a rank share an adapter."""

  def __call__(self, model, training=True):
    for name, module in list(model.named_modules()):
      if name.endswith(".mlp.experts"):
        self._adapt(name, module)
    return super().__call__(model, training)

  def _adapt(self, name, experts):
    linears = {key: [getattr(expert, key) for expert in experts.local_experts] for key in ("linear_fc1", "linear_fc2")}
    del experts.local_experts
    for key, of_experts in linears.items():
      one = of_experts[0]
      adapter = _utils.ParallelLinearAdapter(
        one.input_size, one.output_size, self.dim, f"{name}.{key}", activation="identity", alpha=self.alpha, is_expert=True,
        input_is_parallel=key == "linear_fc2", model_parallel_config=one.config,
      )  # fmt: skip
      setattr(experts, key, _lora.LoRALinear(_Grouped(of_experts), adapter))


def build_adapted(model, text, adapter, padded=None):
  """The chunks of the present rank with an adapter, all values drawn from their names and places."""
  modules = [adapter(module, training=True) for module in build(model, text, padded)]
  tensors = module_tensors(modules)
  for held in held_by(modules):
    generator = torch.Generator().manual_seed(zlib.crc32(repr((held.whole, held.runs)).encode()))
    value = torch.randn(held.local_shape, generator=generator)
    tensors[held.name].copy_(value.view_as(tensors[held.name]))
  return modules
