# SPDX-License-Identifier: Apache-2.0
"""The configuration of a LoRA adapter, as PEFT writes it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from reshard._errors import InvalidArgumentError, UnsupportedError

__all__ = ["as_dict", "changes_base", "for_inference", "scale_of"]

# Options that change a weight by something else than a multiple of B A.
_OTHER_FORMS = (
  "use_dora", "lora_bias", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config",
  "velora_config", "monteclora_config", "target_parameters", "layer_replication", "trainable_token_indices",
)  # fmt: skip


# Initialisations that leave the weights as they are.
_PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica")


def changes_base(config: Mapping[str, Any]) -> bool:
  """Whether the adapter's initialisation changed the weights (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA): it then belongs to
  the changed ones only."""
  start = config.get("init_lora_weights")
  return isinstance(start, str) and start.lower() not in _PLAIN_STARTS


def as_dict(config: Any) -> dict[str, Any]:
  """The values of a peft.LoraConfig, or of the dict that its adapter_config.json holds.

  Raises InvalidArgumentError for anything else, and UnsupportedError for adapters that are more than A and B.
  """
  values = config.to_dict() if hasattr(config, "to_dict") else config
  if not isinstance(values, Mapping):
    raise InvalidArgumentError(f"an adapter's config is a peft.LoraConfig or a dict, not a {type(config).__name__}")
  found = {str(key): value for key, value in values.items()}
  kind = getattr(found.get("peft_type"), "value", found.get("peft_type", "LORA"))
  if kind != "LORA":
    raise UnsupportedError(f"peft_type {kind}: only LORA is understood")
  for name in _OTHER_FORMS:
    if found.get(name):
      raise UnsupportedError(f"an adapter with {name} is more than A and B: merge it before")
  if not isinstance(found.get("lora_alpha"), int | float):
    raise InvalidArgumentError(f"lora_alpha {found.get('lora_alpha')!r} in an adapter's config: must be a number")
  return found | {"peft_type": "LORA"}


def scale_of(config: Mapping[str, Any], module: str, rank: int) -> float:
  """What B A is multiplied with, for a module of the model: lora_alpha / r, or / sqrt(r) with use_rslora.

  rank  of A and B. Patterns of `alpha_pattern` match the end of a module's name, as in PEFT's get_pattern_key().
  """
  alpha = float(config["lora_alpha"])
  for pattern, value in (config.get("alpha_pattern") or {}).items():
    try:
      matches = re.match(rf"(.*\.)?({pattern})$", module)
    except re.error as error:
      raise InvalidArgumentError(f"alpha_pattern '{pattern}': {error}") from None
    if matches:
      alpha = float(value)
      break
  return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def for_inference(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config of as_dict() as PEFT writes it into files. Raises UnsupportedError for what engines do not load."""
  if config.get("bias", "none") != "none":
    raise UnsupportedError(f"bias={config['bias']!r} of an adapter: engines load A and B only")
  if config.get("modules_to_save"):
    raise UnsupportedError("modules_to_save of an adapter: engines load A and B only; update these modules with the model")
  kept = {key: value for key, value in config.items() if key != "runtime_config"}
  return {**json.loads(json.dumps(kept, default=_plain)), "inference_mode": True}


def _plain(value: Any) -> Any:
  if isinstance(value, set | frozenset | tuple):
    return sorted(value)
  return getattr(value, "value", None) or str(value)
