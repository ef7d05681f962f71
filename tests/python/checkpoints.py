# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints of real structure, written by transformers' own classes."""

import json

import safetensors.torch
import torch
import transformers

import mtp_checkpoints

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

_CORRECTION_BIAS = "e_score_correction_bias"

_LLAMA = (transformers.LlamaConfig, transformers.LlamaForCausalLM)
_QWEN2 = (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)
_QWEN3 = (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)
_QWEN3_MOE = (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM)
_MIXTRAL = (transformers.MixtralConfig, transformers.MixtralForCausalLM)
_DEEPSEEK = (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM)
_GLM = (transformers.Glm4MoeConfig, transformers.Glm4MoeForCausalLM)
_GPT_OSS = (transformers.GptOssConfig, transformers.GptOssForCausalLM)
_QWEN3_NEXT = (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM)
_GEMMA3 = (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM)
_NEMOTRON = (transformers.NemotronHConfig, transformers.NemotronHForCausalLM)


def _sizes(hidden, intermediate, heads, kv_heads, layers, vocab, **more):
  return dict(
    hidden_size=hidden,
    intermediate_size=intermediate,
    num_attention_heads=heads,
    num_key_value_heads=kv_heads,
    num_hidden_layers=layers,
    vocab_size=vocab,
    max_position_embeddings=64,
    **more,
  )


_QWEN3_MOE_SIZES = _sizes(
  64,
  96,
  8,
  4,
  4,
  180,
  head_dim=16,
  num_experts=8,
  num_experts_per_tok=2,
  moe_intermediate_size=48,
  tie_word_embeddings=False,
)

_DEEPSEEK_SIZES = _sizes(
  64,
  96,
  8,
  8,
  4,
  180,
  q_lora_rank=24,
  kv_lora_rank=16,
  qk_nope_head_dim=16,
  qk_rope_head_dim=8,
  v_head_dim=12,
  n_routed_experts=8,
  n_shared_experts=2,
  moe_intermediate_size=32,
  first_k_dense_replace=1,
  n_group=2,
  topk_group=1,
  num_experts_per_tok=2,
  num_mtp_layers=0,
  tie_word_embeddings=False,
)
_GLM_SIZES = _sizes(
  64,
  96,
  8,
  4,
  4,
  180,
  head_dim=16,
  n_routed_experts=8,
  n_shared_experts=1,
  moe_intermediate_size=32,
  first_k_dense_replace=1,
  num_experts_per_tok=2,
  attention_bias=True,
  use_qk_norm=True,
  num_mtp_layers=0,
  tie_word_embeddings=False,
)
_QWEN3_NEXT_SIZES = _sizes(
  64,
  96,
  8,
  4,
  4,
  180,
  head_dim=16,
  linear_num_key_heads=4,
  linear_num_value_heads=8,
  linear_key_head_dim=8,
  linear_value_head_dim=12,
  num_experts=8,
  num_experts_per_tok=2,
  moe_intermediate_size=32,
  shared_expert_intermediate_size=48,
  tie_word_embeddings=False,
)
_NEMOTRON_SIZES = dict(
  hidden_size=64,
  intermediate_size=96,
  num_attention_heads=8,
  num_key_value_heads=4,
  head_dim=16,
  vocab_size=180,
  max_position_embeddings=64,
  layers_block_type=[
    "linear_attention",
    "moe",
    "full_attention",
    "mlp",
    "linear_attention",
    "moe",
  ],
  mamba_num_heads=8,
  mamba_head_dim=12,
  n_groups=4,
  ssm_state_size=16,
  chunk_size=16,
  n_routed_experts=8,
  num_experts_per_tok=2,
  moe_intermediate_size=40,
  moe_shared_expert_intermediate_size=56,
  tie_word_embeddings=False,
)

# name -> classes, config, dtype, and whether the routers get a correction bias
SPECS = {
  "llama": (
    _LLAMA,
    _sizes(96, 144, 12, 6, 6, 300, tie_word_embeddings=False),
    torch.bfloat16,
    False,
  ),
  "llama-gqa-tied": (
    _LLAMA,
    _sizes(64, 96, 8, 2, 4, 131, tie_word_embeddings=True),
    torch.float32,
    False,
  ),
  "llama-bias": (
    _LLAMA,
    _sizes(72, 108, 6, 1, 5, 97, tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    torch.float16,
    False,
  ),
  "qwen2": (_QWEN2, _sizes(64, 80, 8, 4, 4, 203, tie_word_embeddings=False), torch.bfloat16, False),
  "qwen3": (
    _QWEN3,
    _sizes(64, 88, 4, 2, 4, 150, head_dim=24, tie_word_embeddings=True),
    torch.bfloat16,
    False,
  ),
  # vLLM has no place for the bias of the output projection.
  "qwen3-bias": (
    _QWEN3,
    _sizes(
      64, 88, 4, 2, 4, 150, head_dim=24, tie_word_embeddings=False, attention_bias=True
    ),
    torch.bfloat16,
    False,
  ),
  "qwen3-moe": (_QWEN3_MOE, _QWEN3_MOE_SIZES | dict(mlp_only_layers=[1]), torch.bfloat16, False),
  "qwen3-moe-10": (
    _QWEN3_MOE,
    _QWEN3_MOE_SIZES | dict(num_experts=10, decoder_sparse_step=2),
    torch.bfloat16,
    True,
  ),
  "mixtral": (
    _MIXTRAL,
    _sizes(
      64, 96, 8, 2, 3, 120, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False
    ),
    torch.bfloat16,
    False,
  ),
  "mixtral-tied": (
    _MIXTRAL,
    _sizes(
      64, 96, 8, 4, 4, 120, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True
    ),
    torch.float32,
    False,
  ),
  "deepseek": (_DEEPSEEK, _DEEPSEEK_SIZES, torch.bfloat16, False),
  "deepseek-noq": (
    _DEEPSEEK,
    _DEEPSEEK_SIZES | dict(q_lora_rank=None),
    torch.float32,
    False,
  ),
  # Which Megatron has no place for.
  "deepseek-bias": (
    _DEEPSEEK,
    _DEEPSEEK_SIZES | dict(attention_bias=True),
    torch.bfloat16,
    False,
  ),
  "kimi": (
    _DEEPSEEK,
    _DEEPSEEK_SIZES
    | dict(
      num_attention_heads=4,
      num_key_value_heads=4,
      n_routed_experts=12,
      n_shared_experts=1,
      n_group=1,
    ),
    torch.bfloat16,
    False,
  ),
  "glm": (_GLM, _GLM_SIZES, torch.bfloat16, False),
  "gpt-oss": (
    _GPT_OSS,
    _sizes(
      64,
      48,
      8,
      4,
      4,
      180,
      head_dim=16,
      num_local_experts=8,
      num_experts_per_tok=2,
      sliding_window=8,
      tie_word_embeddings=False,
    ),
    torch.bfloat16,
    False,
  ),
  "qwen3-next": (_QWEN3_NEXT, _QWEN3_NEXT_SIZES, torch.bfloat16, False),
  "gemma3": (
    _GEMMA3,
    _sizes(64, 96, 8, 4, 4, 180, head_dim=16, sliding_window=8, tie_word_embeddings=True),
    torch.bfloat16,
    False,
  ),
  "nemotron": (_NEMOTRON, _NEMOTRON_SIZES, torch.bfloat16, False),
  "nemotron-one-group": (_NEMOTRON, _NEMOTRON_SIZES | dict(n_groups=1), torch.bfloat16, False),
  "nemotron-latent": (
    _NEMOTRON,
    _NEMOTRON_SIZES | dict(moe_latent_size=24),
    torch.bfloat16,
    False,
  ),
}


def write_checkpoint(folder, name, dtype=None, tied=None, shard_bytes=None, mtp=0):
  """Writes the checkpoint `name` of SPECS under `folder`, in files of `shard_bytes` if given.

  `dtype` and `tied` replace the spec's own. No two tensors are alike: norms and biases are not left
  at the ones and zeros of a fresh model; correction biases of routers are fp32, as published ones
  are. `mtp` adds so many modules for multi-token prediction, which transformers does not write,
  under the names of published checkpoints (mtp_checkpoints.py).
  """
  (config_class, model_class), sizes, spec_dtype, router_bias = SPECS[name]
  if tied is not None:
    sizes = sizes | dict(tie_word_embeddings=tied)
  dtype = dtype or spec_dtype
  torch.manual_seed(sum(name.encode()))
  model = model_class(config_class(**sizes)).to(dtype)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.copy_(torch.randn(parameter.shape) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
  for buffer_name, buffer in list(model.named_buffers()):
    if buffer_name.endswith(_CORRECTION_BIAS):
      buffer.data = torch.randn(buffer.shape, dtype=torch.float32) * 0.1
  sharding = {"max_shard_size": shard_bytes} if shard_bytes else {}
  model.save_pretrained(folder, **sharding)
  if router_bias:
    _add_router_bias(folder)
  if mtp:
    mtp_checkpoints.add_modules(folder, mtp)
  return folder


def _add_router_bias(folder):
  """Adds the fp32 correction bias that a router trained without an auxiliary loss carries."""
  path = folder / "model.safetensors"
  tensors = safetensors.torch.load_file(path)
  for name in [name for name in tensors if name.endswith(".gate.weight")]:
    bias = torch.randn(tensors[name].shape[0], dtype=torch.float32)
    tensors[name.replace(".weight", f".{_CORRECTION_BIAS}")] = bias
  safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def config_of(folder):
  """The config.json of a folder."""
  return json.loads((folder / "config.json").read_text())
