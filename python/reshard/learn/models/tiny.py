# SPDX-License-Identifier: Apache-2.0
"""Small configs of transformers' classes, whose sizes tell apart what a layout depends on.

Sizes are made by the names of a config's keys, in its nested configs too.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
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
  groups: int = 8  # of state-space layers
  state: int = 16
  state_head_dim: int = 24
  linear_heads: int = 24  # of keys in linear attention
  linear_dim: int = 20  # of one of them
  tower: int = 48  # the hidden size of towers
  tower_heads: int = 4
  tower_width: int = 80
  kernel: int = 4  # of convolutions over time
  shared_width: int | None = None  # of shared experts, if not that of the others


#: What learning sees, and what it does not see before a card is accepted.
SEEN = (Sizes(), Sizes(12, 4, 40, 288, 320, 5, 333, 8, 120, 4, 28, 40, 8, 32, 160, 20, 208, 3))
UNSEEN = Sizes(16, 2, 48, 384, 448, 6, 401, 6, 88, 16, 20, 32, 40, 28, 112, 14, 136, 5)

_HIDDEN = ("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "hidden_dim", "out_hidden_size", "emb_dim",
           "projection_dim", "proj_hidden_size", "text_hidden_size", "output_hidden_size", "n_embed")  # fmt: skip
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads",
          "num_encoder_attention_heads", "num_decoder_attention_heads")  # fmt: skip
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads", "swa_num_key_value_heads")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "global_head_dim", "swa_head_dim", "v_head_dim_swa",
             "index_head_dim", "head_size", "dim_head", "mamba_attention_head_dim")  # fmt: skip
_INTERMEDIATE = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "d_ff", "mlp_dim", "n_inner", "dim_ff", "dff",
                 "intermediate_size_mlp", "dense_intermediate_size", "block_ff_dim", "mlp_hidden_size", "d_inner",
                 "encoder_ffn_dim", "decoder_ffn_dim", "attention_hidden_size", "lru_width",
                 "alignment_intermediate_size")  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth", "encoder_layers", "decoder_layers",
           "num_encoder_layers", "num_decoder_layers", "num_blocks", "num_attention_layers")  # fmt: skip
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts",
            "moe_num_primary_experts")  # fmt: skip
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "experts_per_token", "top_k_experts",
           "moe_top_k")  # fmt: skip
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
_FIXED: dict[str, Any] = {
  "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "mtp_num_hidden_layers": 0,
  "max_position_embeddings": 128, "n_positions": 128, "max_sequence_length": 128, "q_lora_rank": 48,
  "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_head_dim": 24,
  "image_size": 64, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
  "index_n_heads": 8, "index_topk": 16, "moe_layer_start_index": 1, "num_shared_experts": 1, "n_shared_experts": 1,
  "vocab_size_per_layer_input": 300, "hidden_size_per_layer_input": 16, "window_size": 32, "max_window_layers": 4,
  "num_kv_shared_layers": 0, "encoder_hash_byte_group_vocab": 200, "encoder_hash_byte_group_nb_functions": 1,
  "num_embeddings": 64, "position_bias_max_distance": 64,
}  # fmt: skip
_FIXED_LISTS: dict[str, Any] = {"deepstack_visual_indexes": [0, 1], "fullatt_block_indexes": [1]}
def _alternating(first: str, second: str, count: int) -> list[str]:
  return [first if i % 2 == 0 else second for i in range(count)]


def _rotated(head_dim: int) -> dict[str, Any]:
  """Positions of time, height and width in a head."""
  each = head_dim // 2 * 3 // 8
  return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [each, each, head_dim // 2 - 2 * each]}


def _with_tower(sizes: Sizes) -> dict[str, Any]:
  """A tower of which the model takes another layer than the last one."""
  return {"vision_config.num_hidden_layers": sizes.layers - 1, "vision_feature_layer": -3 if sizes.layers == 5 else -2}


def _of_mimo(sizes: Sizes) -> dict[str, Any]:
  """Every third layer sees all tokens; the others have twice as many KV heads, as transformers has it."""
  sliding = [int(i % 3 > 0) for i in range(sizes.layers)]
  heads, kv_heads = {8: (16, 4), 12: (24, 12)}.get(sizes.heads, (sizes.heads, 2))
  return {
    "hybrid_layer_pattern": sliding, "layer_types": [("full", "sliding")[one] + "_attention" for one in sliding],
    "moe_layer_freq": [int(i > 0) for i in range(sizes.layers)], "layernorm_epsilon": 1e-5, "sliding_window_size": 32,
    "num_key_value_heads": kv_heads, "swa_num_key_value_heads": 2 * kv_heads, "num_attention_heads": heads,
    "swa_num_attention_heads": heads,
    "rope_theta": 5000000, "swa_rope_theta": 10000, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
  }  # fmt: skip


#: Keys that published configs of a model type have, and transformers does not write. Engines read them. Dotted: of parts.
_PUBLISHED: dict[str, Callable[[Sizes], dict[str, Any]]] = {
  "afmoe": lambda _: {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
  "deepseek_v2": lambda _: {"moe_layer_freq": 1, "num_experts_per_tok": 2, "topk_method": "greedy", "scoring_func": "softmax", "n_group": 1, "topk_group": 1},
  "deepseek_v3": lambda _: {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
  "deepseek_v32": lambda s: {"first_k_dense_replace": 3 if s.layers > 3 else 1, "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
  "aria": lambda _: {"projector_patch_to_query_dict": {16: 8}},
  "cohere_compass": lambda _: {"tie_word_embeddings": True},
  "cohere_compass_text": lambda s: {"rope_parameters": {"full_attention": _rotated(s.head_dim)}},
  "exaone4": lambda _: {"sliding_window_pattern": "LLLG"},
  "falcon": lambda s: {"ffn_hidden_size": 4 * s.hidden},
  "exaone4_5_vision": lambda s: {"num_key_value_heads": 20 if s.tower_heads == 20 else 2},
  "falcon_h1": lambda _: {"mamba_norm_before_gate": False},
  "gemma3": lambda _: {"vision_config.vision_use_head": False},
  "gemma2": lambda _: {"hidden_act": "gelu_pytorch_tanh"},
  "glm4_moe": lambda s: {"head_dim": s.head_dim},
  "glm4_moe_lite": lambda _: {"first_k_dense_replace": 1},
  "glm_moe_dsa": lambda s: {"first_k_dense_replace": 3 if s.layers > 3 else 1, "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "indexer_rope_interleave": True},
  "gptj": lambda s: {"rotary_dim": s.hidden // s.heads // 2},
  "hy_v3": lambda s: {"first_k_dense_replace": 1, "expert_hidden_dim": s.expert_width, "route_norm": True, "qk_norm": True},
  "kimi_linear": lambda s: {
    "first_k_dense_replace": 1, "mla_use_nope": True, "moe_layer_freq": 1, "num_experts": s.experts, "num_experts_per_token": 2,
    "num_shared_experts": 1, "layer_types": _alternating("linear_attention", "full_attention", s.layers),
    "linear_attn_config": {
      "head_dim": s.linear_dim, "num_heads": s.linear_heads, "short_conv_kernel_size": s.kernel,
      "kda_layers": [*range(1, s.layers + 1, 2)], "full_attn_layers": [*range(2, s.layers + 1, 2)],
    },
  },
  "lfm2": lambda s: {
    "block_dim": s.hidden, "conv_dim": s.hidden, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False, "layer_types": _alternating("conv", "full_attention", s.layers),
  },
  "lfm2_moe": lambda s: {"layer_types": _alternating("conv", "full_attention", s.layers)},
  "llava": _with_tower,
  "llava_next": _with_tower,
  "llava_next_video": _with_tower,
  "longcat_flash": lambda _: {
    "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity",
  },
  # The width of the merger behind the tower: transformers makes it of two other keys, vLLM and SGLang read it here.
  "glm_ocr_text": lambda s: {"intermediate_size": 3 * s.hidden},
  "glm_ocr_vision": lambda s: {"projection_intermediate_size": 3 * s.hidden},
  "muse_glimmer": lambda s: {"out_hidden_size": 4 * s.tower, "vision_config.output_dim": 4 * s.tower},
  "mimo_v2_flash": lambda s: _of_mimo(s),
  "glm4v_text": lambda _: {"attention_bias": True},
  "glm4v_moe_text": lambda s: {"head_dim": s.hidden // s.heads, "use_qk_norm": False, "partial_rotary_factor": 0.5},
  "phi3": lambda s: {"num_key_value_heads": s.kv_heads},
  "persimmon": lambda _: {"partial_rotary_factor": 0.5},
  "phi": lambda _: {"partial_rotary_factor": 0.5},
  "qwen2_vl_vision": lambda _: {"in_chans": 3},
  "qwen3_5_moe_text": lambda _: {"full_attention_interval": 4},
  "qwen3_5_text": lambda _: {"full_attention_interval": 4},
  "qwen3_vl_moe_text": lambda _: {"norm_topk_prob": True},
  "qwen3_next": lambda _: {"full_attention_interval": 4},
  "minimax_m2": lambda s: {
    "rotary_dim": s.head_dim // 2, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer",
  },
  "siglip2_vision_model": lambda _: {"vision_use_head": False},
  "zamba2": lambda s: {
    "attention_hidden_size": 2 * s.hidden, "attention_head_dim": 2 * s.hidden // s.heads, "num_key_value_heads": s.heads,
    "layers_block_type": _alternating("linear_attention", "hybrid", s.layers), "hybrid_layer_ids": [*range(1, s.layers, 2)],
  },
}  # fmt: skip
#: Parts that published configs of a model type have, and configs by default do not.
_PARTS = {"gemma4": ("vision_config",), "gemma4_unified": ("vision_config",)}
#: Keys of the decoders that newer published models of a type have.
DECODERS: dict[str, dict[str, Any]] = {"mistral3": {"model_type": "ministral3", "tie_word_embeddings": True}}
_DROPPED = ("transformers_version", "architectures", "id2label", "label2id", "_name_or_path", "output_attentions")
_TOWERS = ("vision", "audio", "visual", "encoder", "sound", "image", "sam", "vq", "patcher")
#: Keys that add or remove tensors, if a class has them.
_FLAGS = ("attention_bias", "mlp_bias", "use_bias", "qkv_bias", "bias", "use_qk_norm", "qk_norm", "qk_layernorm")


def flags_of(architecture: str, names: Sequence[str] = _FLAGS) -> tuple[str, ...]:
  """The flags of a class's config, of its decoder too, that add or remove tensors: dotted names."""
  defaults = getattr(transformers, architecture).config_class().to_dict()
  parts = {"": defaults, "text_config.": defaults.get("text_config") or {}}
  return tuple(
    prefix + name for prefix, said in parts.items() for name in names if isinstance(said.get(name), bool)
  )


def config_of(
  architecture: str, sizes: Sizes, flipped: Sequence[str] = (), decoder: Mapping[str, Any] | None = None
) -> Any:
  """A config of a class with these sizes, in BF16.

  flipped  flags that are set to the opposite of their default
  decoder  keys of the decoder's config, its type among them; None: by default

  Raises what transformers raises for a class that it does not have, or sizes that do not fit it.
  """
  kind = getattr(transformers, architecture)
  of = kind.config_class
  defaults = of().to_dict()
  if decoder is not None:
    defaults["text_config"] = transformers.CONFIG_MAPPING[decoder["model_type"]](**decoder).to_dict()
  for whole in (False, True):
    try:
      said = _shrunk(of, defaults, sizes, False, whole)
      for flag in flipped:
        prefix, _, name = flag.rpartition(".")
        part = said[prefix] if prefix else said
        part[name] = not part[name]
      config = of(**said, dtype="bfloat16")
      config.dtype = "bfloat16"
      with torch.device("meta"):
        kind._from_config(config, dtype=torch.bfloat16)
      break
    except Exception:
      if whole:
        raise
  return config


def _shrunk(
  of: Any, values: Mapping[str, Any], sizes: Sizes, tower: bool, whole: bool
) -> dict[str, Any]:
  """`whole`: sizes that the class leaves open (None) are set, too."""
  out = {k: copy.deepcopy(v) for k, v in values.items() if k not in (*_DROPPED, "dtype")}
  for names, size in _sizes_of(sizes, values, tower):
    for name in names:
      if type(values.get(name)) is int or (whole and name in values and values[name] is None):
        out[name] = size
  for name, size in _FIXED.items():
    if type(values.get(name)) is int or (whole and name in values and values[name] is None):
      out[name] = size
  out.update({n: size for n, size in _FIXED_LISTS.items() if values.get(n) is not None})
  _fit(out, sizes)
  depth = next((values[k] for k in _LAYERS if isinstance(values.get(k), int)), 0)
  count = 2 if tower else sizes.layers
  for name, value in values.items():
    if isinstance(value, list | tuple) and len(value) == depth > 1:
      out[name] = _shortened(list(value), count)
    elif name.endswith(("_token_id", "_token_index")) and value is not None:
      out[name] = 1
  for name, sub in (getattr(of, "sub_configs", None) or {}).items():
    if out.get(name) is None and name in _PARTS.get(of.model_type, ()):
      out[name] = sub().to_dict()
    if isinstance(out.get(name), dict):
      kind = out[name].get("model_type")
      known = transformers.CONFIG_MAPPING[kind] if kind in transformers.CONFIG_MAPPING else sub
      inner = any(word in name for word in _TOWERS)
      out[name] = _shrunk(known, known().to_dict() | out[name], sizes, inner, whole)
  for name, value in values.items():
    if isinstance(value, dict) and value and all(str(k).isdigit() for k in value):
      out[name] = _of_layers(value, values.get("layer_types"), out.get("layer_types"), count)
  published = _PUBLISHED.get(of.model_type)
  for name, value in published(sizes).items() if published else ():
    part, _, key = name.rpartition(".")
    (out[part] if part else out)[key] = value
  return out


def _sizes_of(
  sizes: Sizes, values: Mapping[str, Any], tower: bool
) -> list[tuple[tuple[str, ...], int]]:
  """By the names of keys. Towers have their own, smaller ones."""
  if tower:
    return [
      (_HIDDEN, sizes.tower),
      (_HEADS, sizes.tower_heads),
      (_KV_HEADS, sizes.tower_heads),
      (_HEAD_DIM, sizes.tower // sizes.tower_heads),
      (_INTERMEDIATE, sizes.tower_width),
      (_LAYERS, 2),
      (("out_hidden_size", "text_hidden_size"), sizes.hidden),
    ]
  latent = values.get("kv_lora_rank") is not None
  one = any(values.get(name) == 1 for name in _CHOSEN)
  return [
    (_HIDDEN, sizes.hidden),
    (_HEADS, sizes.heads),
    (_KV_HEADS, sizes.heads if latent else sizes.kv_heads),
    (_HEAD_DIM, sizes.head_dim),
    (_INTERMEDIATE, sizes.intermediate),
    (_LAYERS, sizes.layers),
    (("vocab_size",), sizes.vocab),
    (_EXPERTS, sizes.experts),
    (_CHOSEN, 1 if one else 2),
    (_EXPERT_WIDTH, sizes.expert_width),
    (_SHARED_WIDTH, sizes.shared_width or sizes.expert_width),
    (("linear_num_key_heads",), sizes.linear_heads),
    (("linear_num_value_heads",), 2 * sizes.linear_heads),
    (("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv_L_cache"), sizes.kernel),
    (("linear_key_head_dim",), sizes.linear_dim),
    (("linear_value_head_dim",), sizes.state_head_dim),
    (("mamba_num_heads", "mamba_n_heads"), 2 * sizes.heads),
    (("mamba_head_dim",), sizes.state_head_dim),
    (("ssm_state_size", "mamba_d_state", "state_size"), sizes.state),
    (("n_groups", "mamba_n_groups"), sizes.groups),
  ]


def _fit(out: dict[str, Any], sizes: Sizes) -> None:
  """Sizes that follow from others."""
  if "d_head" in out:
    out["d_head"] = sizes.hidden // sizes.heads
  if isinstance(out.get("mamba_expand"), int) and "mamba_d_head" in out:
    out["mamba_d_head"] = out["mamba_expand"] * sizes.hidden // out["mamba_n_heads"]
  if isinstance(out.get("expand"), int) and {"num_heads", "head_dim", "state_size"} <= out.keys():
    out["head_dim"] = out["expand"] * sizes.hidden // out["num_heads"]
  if isinstance(out.get("mamba_d_ssm"), int):
    out["mamba_d_ssm"] = out["mamba_n_heads"] * out["mamba_d_head"]
  rope = out.get("rope_parameters")
  dim = out.get("head_dim") or sizes.hidden // sizes.heads
  for of in (rope, *(rope.values() if isinstance(rope, dict) else ())):
    if isinstance(of, dict) and isinstance(of.get("mrope_section"), list):
      of["mrope_section"] = _sections(dim // 2)
  if "vocabulary_map" in out and out["vocabulary_map"] is None:
    out["vocabulary_map"] = {"<image>": 1}


def _sections(size: int) -> list[int]:
  """A dimension in three parts."""
  return [size - 2 * (size // 3), size // 3, size // 3]


def _of_layers(values: Mapping[Any, Any], were: Any, are: Any, count: int) -> dict[Any, Any]:
  """What a config says of some layers, for fewer. `were` and `are`: the types of the layers."""
  if not were or not are:
    return {k: v for k, v in values.items() if int(k) < count}
  said = {were[int(k)]: (k, v) for k, v in values.items()}
  return {type(said[t][0])(i): said[t][1] for i, t in enumerate(are) if t in said}


def _shortened(values: list[Any], count: int) -> list[Any]:
  """A list with an entry for each layer, for fewer: every kind of entry is there, if it can be."""
  texts = list(map(str, values))
  kinds = list(dict.fromkeys(texts))
  if len(kinds) > count or set(texts[:count]) == set(kinds):
    return values[:count]
  firsts = [values[texts.index(kind)] for kind in kinds]
  return [*(firsts * count)[: count - 1], values[-1]]  # some classes ask for a type of the last one
