# SPDX-License-Identifier: Apache-2.0
"""Teaches the layouts of vLLM: traces of its own classes and loaders, on small models."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import transformers
import vllm

from reshard import _core
from reshard.learn.evidence import Sight
from reshard.tracing.vllm import trace_vllm

FRAMEWORK, RELEASE = "vllm", vllm.__version__.split("+")[0]
AXES = [{"name": name, "size": 1} for name in ("tp", "pp", "dp", "replicas")]
KEYS = [{"name": "ep"}]
REQUIRE = [{"that": "ep == 1 || ep == tp * dp", "says": "ep must be 1 or tp * dp"}]
#: How vLLM spreads experts: whole ones with ep, else parts of each, over all ranks of a stage.
EXPERT_AXES = {"axes": ["dp", "tp"], "combine": "flattened"}
#: Of stages that layers do not divide (distributed/utils.py, get_pp_indices).
STAGES = {"rest": "before_last"}


def classes() -> list[tuple[str, str]]:
  """(model_type, class) of what both transformers and this vLLM have, with a language model's head."""
  from transformers.models.auto import modeling_auto
  from vllm.model_executor.models import registry

  known = {**registry._TEXT_GENERATION_MODELS, **registry._MULTIMODAL_MODELS}
  mappings = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
  )
  pairs = [(kind, name) for names in mappings for kind, name in names.items() if name in known]
  return list({name: (kind, name) for kind, name in reversed(pairs)}.values())[::-1]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
  """The whole numbers of a config, by dotted names, as cards name them."""
  out: dict[str, int] = {}
  for key, value in values.items():
    if isinstance(value, bool | int):
      out[prefix + key] = int(value)
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


def tied_names(architecture: str) -> frozenset[str]:
  """The names of tensors that a class ties to others, if its config says so."""
  return frozenset(getattr(getattr(transformers, architecture), "_tied_weights_keys", None) or ())


def layout_of(
  folder: pathlib.Path, sizes: Mapping[str, int], prove: bool, ranks: Sequence[int] | None = None
) -> _core.Layout:
  """What vLLM's loader leaves on ranks (None: on all), at these sizes."""
  keys: dict[str, Any] = {k: v for k, v in sizes.items() if k != "ep"}
  found = trace_vllm(
    folder, ep=sizes.get("ep", 1) > 1, ranks=ranks, prove=prove, enable_prefix_caching=False, **keys
  )
  return found.layout


def sight(
  folder: pathlib.Path,
  sizes: Mapping[str, int],
  model: int,
  prove: bool,
  ranks: Sequence[int] | None = None,
) -> Sight:
  return Sight.of(layout_of(folder, sizes, prove, ranks), sizes, numbers_of(folder), model)
