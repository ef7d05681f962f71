# SPDX-License-Identifier: Apache-2.0
"""Small configs of transformers' model types, whose sizes tell apart what a layout depends on.

Sizes are made by the names of a config's keys, in its nested configs too.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import transformers


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of a small model. No ratio of two sizes is the same in two sets: `hidden` is not told from
  `heads * head_dim`, nor a sixth from a group's rows, where all models agree by chance."""

  heads: int = 8
  kv_heads: int = 2
  head_dim: int = 32  # of classes that have the key; of others, hidden / heads
  hidden: int = 128
  intermediate: int = 192
  layers: int = 4
  vocab: int = 300
  experts: int = 4
  expert_width: int = 64


#: What learning sees, and what it does not see before a card is accepted.
SEEN = (Sizes(), Sizes(12, 4, 40, 288, 320, 5, 333, 8, 120))
UNSEEN = Sizes(16, 2, 48, 384, 448, 6, 401, 6, 88)

_HIDDEN = ("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "hidden_dim", "out_hidden_size",
           "projection_dim", "proj_hidden_size", "text_hidden_size", "output_hidden_size")  # fmt: skip
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads", "swa_num_key_value_heads")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "global_head_dim", "swa_head_dim", "v_head_dim_swa",
             "index_head_dim", "head_size")  # fmt: skip
_INTERMEDIATE = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "d_ff", "mlp_dim", "n_inner",
                 "intermediate_size_mlp", "dense_intermediate_size", "block_ff_dim", "mlp_hidden_size",
                 "encoder_ffn_dim")  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth", "encoder_layers")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts",
            "moe_num_primary_experts")  # fmt: skip
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "experts_per_token", "top_k_experts",
           "moe_top_k")  # fmt: skip
_EXPERT_WIDTH = ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
                 "moe_ffn_hidden_size", "shared_intermediate_size", "expert_intermediate_size",
                 "moe_shared_expert_intermediate_size")  # fmt: skip
_FIXED: dict[str, Any] = {
  "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "mtp_num_hidden_layers": 0,
  "max_position_embeddings": 128, "n_positions": 128, "max_sequence_length": 128, "q_lora_rank": 48,
  "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_head_dim": 24,
  "image_size": 64, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
  "index_n_heads": 8, "index_topk": 16, "moe_layer_start_index": 1, "num_shared_experts": 1, "n_shared_experts": 1,
  "vocab_size_per_layer_input": 300, "hidden_size_per_layer_input": 16, "deepstack_visual_indexes": [0, 1],
  "fullatt_block_indexes": [1], "window_size": 32, "max_window_layers": 4,
}  # fmt: skip
_DROPPED = ("transformers_version", "architectures", "id2label", "label2id")
_TOWERS = ("vision", "audio", "visual", "encoder", "sound", "image")


def config_of(model_type: str, sizes: Sizes) -> Any:
  """A config of the type with these sizes, in BF16.

  Raises what transformers raises for a type that it does not have, or sizes that do not fit it.
  """
  of = transformers.CONFIG_MAPPING[model_type]
  config = of(**_shrunk(of, of().to_dict(), sizes, False), dtype="bfloat16")
  config.dtype = "bfloat16"
  return config


def _shrunk(of: Any, values: Mapping[str, Any], sizes: Sizes, tower: bool) -> dict[str, Any]:
  out = {k: copy.deepcopy(v) for k, v in values.items() if k not in (*_DROPPED, "dtype")}
  for names, size in _sizes_of(sizes, values, tower):
    out.update({n: size for n in names if type(values.get(n)) is int})
  out.update({n: size for n, size in _FIXED.items() if values.get(n) is not None})
  depth = next((values[k] for k in _LAYERS if isinstance(values.get(k), int)), 0)
  for name, value in values.items():
    if isinstance(value, list | tuple) and len(value) == depth > 1:
      out[name] = _shortened(list(value), 2 if tower else sizes.layers)
    elif name.endswith(("_token_id", "_token_index")) and value is not None:
      out[name] = 1
  for name, sub in (getattr(of, "sub_configs", None) or {}).items():
    if isinstance(out.get(name), dict):
      kind = out[name].get("model_type")
      known = transformers.CONFIG_MAPPING[kind] if kind in transformers.CONFIG_MAPPING else sub
      inner = any(word in name for word in _TOWERS)
      out[name] = _shrunk(known, known().to_dict() | out[name], sizes, inner)
  return out


def _sizes_of(
  sizes: Sizes, values: Mapping[str, Any], tower: bool
) -> list[tuple[tuple[str, ...], int]]:
  """By the names of keys. Towers have their own, smaller ones."""
  if tower:
    hidden, width = sizes.hidden // 2, sizes.intermediate // 2
    small = {_HIDDEN: hidden, _HEADS: 4, _KV_HEADS: 4, _HEAD_DIM: hidden // 4, _INTERMEDIATE: width, _LAYERS: 2}
    return [*small.items(), (("out_hidden_size",), sizes.hidden)]
  latent = values.get("kv_lora_rank") is not None
  return [
    (_HIDDEN, sizes.hidden),
    (_HEADS, sizes.heads),
    (_KV_HEADS, sizes.heads if latent else sizes.kv_heads),
    (_HEAD_DIM, sizes.head_dim),
    (_INTERMEDIATE, sizes.intermediate),
    (_LAYERS, sizes.layers),
    (("vocab_size",), sizes.vocab),
    (_EXPERTS, sizes.experts),
    (_CHOSEN, 2),
    (_EXPERT_WIDTH, sizes.expert_width),
  ]


def _shortened(values: list[Any], count: int) -> list[Any]:
  """A list with an entry for each layer, for fewer: every kind of entry is there, if it can be."""
  texts = list(map(str, values))
  kinds = list(dict.fromkeys(texts))
  if len(kinds) > count or set(texts[:count]) == set(kinds):
    return values[:count]
  firsts = [values[texts.index(kind)] for kind in kinds]
  return (firsts * count)[:count]
