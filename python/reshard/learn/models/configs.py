# SPDX-License-Identifier: Apache-2.0
"""What transformers says of model types: their classes, and the keys of their configs."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import transformers


def classes() -> list[str]:
  """The names of all classes with a language model's head."""
  from transformers.models.auto import modeling_auto

  mappings = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
  )
  return list(dict.fromkeys(name for names in mappings for name in names.values()))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
  """The whole numbers of a config, by dotted names, as cards name them."""
  out: dict[str, int] = {}
  for key, value in values.items():
    if isinstance(value, bool | int):
      out[f"{prefix}{key}"] = int(value)
    elif isinstance(value, Mapping):
      out.update(flat(value, f"{prefix}{key}."))
  return out


def numbers_of(folder: pathlib.Path) -> dict[str, int]:
  """Of a checkpoint's config, with the defaults of its class."""
  said = json.loads((folder / "config.json").read_text())
  return flat(transformers.AutoConfig.from_pretrained(folder).to_dict()) | flat(said)


def defaults_of(model_type: str) -> dict[str, int]:
  """What a config of the type has for keys that a file leaves out; not for keys that then follow
  others, as the number of KV heads that of heads, in some classes."""
  return _defaults(transformers.CONFIG_MAPPING[model_type])


def _defaults(of: Any) -> dict[str, int]:
  plain = flat(of().to_dict())
  others = {k: 2 * plain[k] for k in ("num_attention_heads", "hidden_size") if k in plain}
  for key, value in others.items():
    try:
      changed = flat(of(**{key: value}).to_dict())
    except Exception:  # sizes that do not fit each other: what follows is not known
      changed = {}
    plain = {k: v for k, v in plain.items() if k == key or changed.get(k) == v}
  for name in getattr(of, "sub_configs", None) or {}:
    kind = getattr(getattr(of(), name, None), "model_type", None)
    plain = {k: v for k, v in plain.items() if not k.startswith(f"{name}.")}
    if kind in transformers.CONFIG_MAPPING:
      inner = _defaults(transformers.CONFIG_MAPPING[kind])
      plain.update({f"{name}.{k}": v for k, v in inner.items()})
  return plain


def aliases_of(model_type: str) -> dict[str, str]:
  """Other names of a config's keys: {"num_local_experts": "num_experts"}. Dotted, of nested configs too."""
  return _aliases(transformers.CONFIG_MAPPING[model_type])


def _aliases(of: Any) -> dict[str, str]:
  found = {str(key): str(name) for name, key in (getattr(of, "attribute_map", None) or {}).items()}
  for part in getattr(of, "sub_configs", None) or {}:
    kind = getattr(getattr(of(), part, None), "model_type", None)
    if kind in transformers.CONFIG_MAPPING:
      inner = _aliases(transformers.CONFIG_MAPPING[kind])
      found.update({f"{part}.{key}": f"{part}.{name}" for key, name in inner.items()})
  return found


def tied_names(architecture: str) -> frozenset[str]:
  """The names of tensors that a class ties to others, if its config says so."""
  return frozenset(getattr(getattr(transformers, architecture), "_tied_weights_keys", None) or ())


