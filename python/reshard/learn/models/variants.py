# SPDX-License-Identifier: Apache-2.0
"""Names of the tensors of a class's small models, and of models whose configs differ from them in one key.

Models are built without memory, so that many can be looked at.
"""

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers

from reshard._model_of import saved
from reshard.learn.models import tiny
from reshard.learn.models.configs import flat
from reshard.learn.models.published import prefixes_of, renamed
from reshard.learn.models.stored import STORED, Stored

#: Keys of configs that add or remove no tensors.
_OTHER = ("_token", "vocab", "dropout", "position", "rope", "eps", "std", "window", "max_", "min_", "theta", "factor",
          "seed", "output_", "return_", "use_cache", "temperature", "is_encoder", "cross_attention", "label", "image_size",
          "patch_size")  # fmt: skip
#: Keys that are sizes: only whether there is one may add or remove tensors.
_SIZES = ("_size", "_dim", "_rank", "_width", "channels", "heads")


@dataclasses.dataclass(frozen=True)
class Variant:
  """A small model.

  config  as transformers writes it, with the defaults of its class
  names   of its tensors in a checkpoint, and their shapes
  plain   its config is one of those that cards are learned from
  """

  config: Mapping[str, Any]
  names: Mapping[str, tuple[int, ...]]
  plain: bool

  @property
  def numbers(self) -> dict[str, int]:
    return flat(self.config)


def variants_of(architecture: str) -> list[Variant]:
  """Of a class: models of the sizes that learning sees, in each form of its checkpoints; that of the config that the
  class has by default; and those whose config differs in one key from the first small one.

  Raises what transformers raises for a class that it cannot build at these sizes.
  """
  every = (*tiny.SEEN, tiny.UNSEEN)
  configs = [tiny.config_of(architecture, sizes) for sizes in every]
  out = [one for config in configs for one in _named_both_ways(architecture, config)]
  for form in STORED.get(configs[0].model_type, ()):
    if not form.omits:
      out += [_stored(architecture, tiny.config_of(architecture, sizes), form) for sizes in every]
  first = configs[0]
  for changed in ({}, *_changed(first)):  # {}: the class's own sizes
    try:
      out += _named_both_ways(architecture, type(first)(**changed, dtype="bfloat16"), plain=False)
    except Exception:  # not every value fits the others
      continue
  return out


def _named_both_ways(architecture: str, config: Any, plain: bool = True) -> list[Variant]:
  """As published, and as transformers writes it, if it names towers otherwise."""
  tensors, prefixes = _saved(architecture, config)
  names = [{renamed(name, prefixes): shape for name, shape in tensors.items()}] + ([tensors] if prefixes else [])
  return [Variant(config.to_dict(), of, plain) for of in names]


def _stored(architecture: str, config: Any, form: Stored) -> Variant:
  """In another form than transformers writes."""
  if form.last is not None:
    decoder = config.get_text_config()
    decoder.layer_types = [*decoder.layer_types[:-1], form.last]
  tensors, prefixes = _saved(architecture, config)
  with torch.device("meta"):
    named = {renamed(name, prefixes): torch.empty(shape, dtype=torch.bfloat16) for name, shape in tensors.items()}
    changed = form.change(named)
  said = config.to_dict()
  said.get("text_config", said).update(form.config)
  return Variant(said, {name: tuple(t.shape) for name, t in changed.items()}, True)


def _saved(architecture: str, config: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
  """The names and shapes of a model's tensors as transformers writes them, without those that it does not miss; and
  what published checkpoints put before the names of towers: prefixes_of()."""
  with torch.device("meta"):
    model = getattr(transformers, architecture)._from_config(config, dtype=torch.bfloat16)
  ignored = [re.compile(text) for text in model._keys_to_ignore_on_load_missing or ()]
  left = set(model._keys_to_ignore_on_save or ())
  tensors = {
    name: tuple(t.shape) for name, t in saved(model) if name not in left and not any(p.search(name) for p in ignored)
  }
  return tensors, prefixes_of(model)


def _changed(config: Any) -> Iterator[dict[str, Any]]:
  """Values for a config that differ from its own in one key, of nested configs too."""
  values = _without(config.to_dict())
  for path, change in _changes(values, ()):
    out = copy.deepcopy(values)
    part = out
    for key in path[:-1]:
      part = part[key]
    part[path[-1]] = change
    yield out


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
  """Without what is written of a config besides its keys."""
  left = ("transformers_version", "architectures", "dtype", "id2label", "label2id")
  return {
    key: _without(value) if isinstance(value, dict) and "model_type" in value else copy.deepcopy(value)
    for key, value in values.items()
    if key not in left
  }


def _changes(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
  for key, value in values.items():
    if isinstance(value, dict):
      if "model_type" in value:
        yield from _changes(value, (*path, key))
    elif not any(word in key for word in _OTHER):
      for other in _others(key, value):
        yield (*path, key), other


def _others(key: str, value: Any) -> list[Any]:
  """Other values of a key: those of the same kind that may add or remove tensors."""
  if isinstance(value, bool):
    return [not value]
  if isinstance(value, int):
    sized = any(word in key for word in _SIZES)
    return [v for v in ((0, None) if sized else (0, 1, value + 1, None)) if v != value]
  if value is None:
    return [[1], 16]
  if isinstance(value, list) and all(isinstance(v, str | int) for v in value):
    turned = [value[1:] + value[:1], [value[0]] * len(value), [value[-1]] * len(value)] if value else []
    return [v for v in (*turned, [], [0], [1]) if v != value]
  return []
