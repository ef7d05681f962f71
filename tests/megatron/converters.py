# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge's own converters: its registries of which parameter is made of which tensors, and the
mappings that make them.

Its package wants Transformer Engine, mamba_ssm and a dozen others for what is beside the converters
(providers of models, training). Those parts are replaced by empty modules while the bridges are
imported; the registries, the mappings and their arithmetic are Megatron-Bridge's own.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

import torch

_ROOT = "megatron.bridge"
_OWN = (
  "megatron.bridge.models.conversion.mapping_registry",
  "megatron.bridge.models.conversion.param_mapping",
  "megatron.bridge.models.conversion.utils",
  "megatron.bridge.models.deepseek.common",
  "megatron.bridge.utils.common_utils",
  "megatron.bridge.utils.slurm_utils",
)
_BRIDGES = {
  "llama": ("llama.llama_bridge", "LlamaBridge"),
  "qwen2": ("qwen.qwen2_bridge", "Qwen2Bridge"),
  "qwen3": ("qwen.qwen3_bridge", "Qwen3Bridge"),
  "qwen3-moe": ("qwen.qwen3_moe_bridge", "Qwen3MoEBridge"),
  "qwen3-next": ("qwen.qwen3_next_bridge", "Qwen3NextBridge"),
  "deepseek": ("deepseek.deepseek_v3_bridge", "DeepSeekV3Bridge"),
  "glm": ("glm.glm45_bridge", "GLM45Bridge"),
  "gpt-oss": ("gpt_oss.gpt_oss_bridge", "GPTOSSBridge"),
  "nemotron": ("nemotronh.nemotron_h_bridge", "NemotronHBridge"),
  "gemma3": ("gemma.gemma3_bridge", "Gemma3ModelBridge"),
}


NAMES = list(_BRIDGES)


class _Base:
  """Stands for MegatronModelBridge: what the bridges' registries do not use."""

  CONFIG_MAPPING = []

  @staticmethod
  def register_bridge(**_):
    return lambda bridge: bridge


class _Empty(types.ModuleType):
  """A module in which any name is a class without anything."""

  def __getattr__(self, name):
    if name.startswith("__"):
      raise AttributeError(name)
    return _Base if name == "MegatronModelBridge" else type(name, (), {})


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds empty modules for what is beside the modules `own` of Megatron-Bridge."""

  def __init__(self, own, folder):
    self.own, self.folder = own, folder

  @contextlib.contextmanager
  def finding(self):
    """Empty modules are forgotten at the end."""
    before = set(sys.modules)
    sys.meta_path.insert(0, self)
    try:
      yield
    finally:
      sys.meta_path.remove(self)
      for name in set(sys.modules) - before:
        if isinstance(sys.modules[name], _Empty):
          del sys.modules[name]

  def find_spec(self, fullname, path=None, target=None):
    top = fullname.split(".", maxsplit=1)[0]
    if fullname in self.own or (top not in ("transformers", "rich") and not self._inside(fullname)):
      return None
    return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

  @staticmethod
  def _inside(fullname):
    return fullname == _ROOT or fullname.startswith(_ROOT + ".")

  def create_module(self, spec):
    module = _Empty(spec.name)
    inner = spec.name.removeprefix(_ROOT).split(".")[1:] if self._inside(spec.name) else None
    module.__path__ = [] if inner is None else [str(self.folder.joinpath(*inner))]
    return module

  def exec_module(self, module):
    pass


def bridges():
  """Megatron-Bridge's bridges by the names of models.MODELS, and "gemma3"."""
  found = importlib.util.find_spec(_ROOT)
  own = {*_OWN, *(f"{_ROOT}.models.{module}" for module, _ in _BRIDGES.values())}
  with EmptyModules(own, pathlib.Path(found.submodule_search_locations[0])).finding():
    modules = {name: importlib.import_module(f"{_ROOT}.models.{m}") for name, (m, _) in _BRIDGES.items()}
  return {name: getattr(modules[name], cls) for name, (_, cls) in _BRIDGES.items()}


def mappings():
  """The module of Megatron-Bridge's mappings. After bridges()."""
  return sys.modules["megatron.bridge.models.conversion.param_mapping"]


def bridge(kind, hf):
  """A bridge of this class for the model of a config.json."""
  made = kind()
  made.hf_config = made._hf_config = types.SimpleNamespace(**hf)
  return made


class VocabParallelEmbedding(torch.nn.Module):
  """The module that a mapping asks for its config. Megatron-Bridge finds by the name of its class that
  it is cut by rows, which on one rank is all of them."""

  def __init__(self, config):
    super().__init__()
    self.config = types.SimpleNamespace(**config)
    self.weight = torch.nn.Parameter(torch.zeros(1))


def converted(made, megatron_name, tensors, config):
  """What a bridge puts into a parameter of the only rank; None where it knows no such one.

  `tensors`: the checkpoint's, by name; `config`: Megatron's config keys.
  """
  mapping = made.mapping_registry().megatron_to_hf_lookup(megatron_name)
  if mapping is None:
    return None
  names = mapping.hf_param
  change = getattr(made, "maybe_modify_loaded_hf_weight", None)
  if change is not None:
    taken = change(names, tensors)
  elif isinstance(names, str):
    taken = tensors[names]
  else:
    taken = {part: tensors[name] for part, name in names.items()}
  return mapping.hf_to_megatron(taken, VocabParallelEmbedding(config))
