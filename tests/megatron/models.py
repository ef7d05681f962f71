# SPDX-License-Identifier: Apache-2.0
"""Tiny models: the config.json that reshard reads, and the same model as Megatron-Core's modules.

Modules are those of the local spec: Transformer Engine's need a GPU.
"""

import functools

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import gpt_layer_specs, gpt_model
from megatron.core.models.mamba import mamba_model
from megatron.core.ssm import gated_delta_net, mamba_block, mamba_layer, mamba_mixer, mlp_layer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import attention, dot_product_attention, mlp
from megatron.core.transformer import transformer_config as configs
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

VOCABULARY = 100

# What the models share, in the words of a config.json and of Megatron.
_HF = {
  "hidden_size": 32,
  "intermediate_size": 48,
  "num_hidden_layers": 4,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 4,
  "vocab_size": VOCABULARY,
  "tie_word_embeddings": False,
}
_MEGATRON = {
  "hidden_size": 32,
  "ffn_hidden_size": 48,
  "num_layers": 4,
  "num_attention_heads": 8,
  "num_query_groups": 4,
  "kv_channels": 4,
  "gated_linear_unit": True,
  "add_bias_linear": False,
  "normalization": "RMSNorm",
  "use_cpu_initialization": True,
  "params_dtype": torch.bfloat16,
  "pipeline_dtype": torch.bfloat16,
  "bf16": True,
  "hidden_dropout": 0.0,
}
_HF_EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
_EXPERTS = {
  "num_moe_experts": 8,
  "moe_ffn_hidden_size": 24,
  "moe_router_topk": 2,
  "moe_layer_freq": [0, 1, 1, 1],
}
_MLA_HF = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
_MLA = {
  "q_lora_rank": 16,
  "kv_lora_rank": 8,
  "qk_head_dim": 8,
  "qk_pos_emb_head_dim": 4,
  "v_head_dim": 6,
  "multi_latent_attention": True,
  "rope_type": "rope",
  "qk_layernorm": True,
}
_DEEPSEEK_HF = _HF | _HF_EXPERTS | _MLA_HF | {
  "architectures": ["DeepseekV3ForCausalLM"],
  "model_type": "deepseek_v3",
  "v_head_dim": 6,
  "n_routed_experts": 8,
  "n_shared_experts": 2,
  "first_k_dense_replace": 1,
  "num_nextn_predict_layers": 1,
  "attention_bias": False,
}  # fmt: skip
_DEEPSEEK = _MEGATRON | _EXPERTS | _MLA | {
  "moe_shared_expert_intermediate_size": 48,
  "moe_router_enable_expert_bias": True,
  "moe_router_score_function": "sigmoid",
  "mtp_num_layers": 1,
}  # fmt: skip


class Model:
  """A config.json, and how to build what one pipeline stage (and chunk) of it holds."""

  def __init__(self, hf, megatron, tied=False):
    self.hf = hf | {"tie_word_embeddings": tied}
    self.megatron, self.tied = megatron, tied

  def build(self, parallel, vp_stage=None, padded_vocabulary=VOCABULARY):
    """The module of this rank. `parallel`: Megatron's config keys for sizes and stages."""
    kind = configs.MLATransformerConfig if "kv_lora_rank" in self.megatron else None
    config = (kind or configs.TransformerConfig)(**self.megatron, **parallel)
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
    ends = {
      "pre_process": first,
      "post_process": last,
      "vocab_size": padded_vocabulary,
      "max_sequence_length": 8,
      "share_embeddings_and_output_weights": self.tied,
    }
    return self._module(config, vp_stage, ends)

  def _module(self, config, vp_stage, ends):
    return gpt_model.GPTModel(
      config,
      self._block(config, vp_stage),
      position_embedding_type="rope",
      mtp_block_spec=self._mtp(config, vp_stage),
      vp_stage=vp_stage,
      **ends,
    )

  def _block(self, config, vp_stage):
    return gpt_layer_specs.get_gpt_decoder_block_spec(
      config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
    )

  def _mtp(self, config, vp_stage):
    if config.mtp_num_layers is None:
      return None
    layers = gpt_layer_specs.get_gpt_decoder_layer_specs(
      config, use_transformer_engine=False, normalization="RMSNorm"
    )
    return gpt_layer_specs.get_gpt_mtp_block_spec(
      config, layers[-1], use_transformer_engine=False, vp_stage=vp_stage
    )


class GatedDelta(Model):
  """Three layers with a gated delta net, one with attention."""

  def _block(self, config, vp_stage):
    block = super()._block(config, vp_stage)
    offset = parallel_state.get_pipeline_model_parallel_rank() * len(block.layer_specs)
    for i, layer in enumerate(block.layer_specs):
      if (offset + i + 1) % 4 != 0:
        block.layer_specs[i] = self._with_delta_net(layer)
    return block

  @staticmethod
  def _with_delta_net(layer):
    parts = gated_delta_net.GatedDeltaNetSubmodules(
      in_proj=ColumnParallelLinear, out_norm=WrappedTorchNorm, out_proj=RowParallelLinear
    )
    mixer = ModuleSpec(module=gated_delta_net.GatedDeltaNet, submodules=parts)
    submodules = vars(layer.submodules) | {"self_attention": mixer}
    return ModuleSpec(module=layer.module, submodules=TransformerLayerSubmodules(**submodules))


class Hybrid(Model):
  """MambaModel; its published spec needs Transformer Engine, this one has the same modules."""

  pattern = "ME*-ME"

  def _module(self, config, vp_stage, ends):
    return mamba_model.MambaModel(
      config, _hybrid_stack(), hybrid_override_pattern=self.pattern, **ends
    )


def _hybrid_stack():
  from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec

  norm, column, row = WrappedTorchNorm, ColumnParallelLinear, RowParallelLinear
  mixer = ModuleSpec(
    module=mamba_mixer.MambaMixer,
    submodules=mamba_mixer.MambaMixerSubmodules(in_proj=column, out_proj=row),
  )
  self_attention = ModuleSpec(
    module=attention.SelfAttention,
    params={"attn_mask_type": AttnMaskType.causal},
    submodules=attention.SelfAttentionSubmodules(
      linear_qkv=column,
      core_attention=dot_product_attention.DotProductAttention,
      linear_proj=row,
    ),
  )
  dense = ModuleSpec(
    module=mlp.MLP, submodules=mlp.MLPSubmodules(linear_fc1=column, linear_fc2=row)
  )
  experts = get_moe_module_spec(use_te=False, num_experts=8, moe_grouped_gemm=False)
  layer = functools.partial(ModuleSpec)
  return ModuleSpec(
    module=mamba_block.MambaStack,
    submodules=mamba_block.MambaStackSubmodules(
      mamba_layer=layer(
        module=mamba_layer.MambaLayer,
        submodules=mamba_layer.MambaLayerSubmodules(norm=norm, mixer=mixer),
      ),
      attention_layer=layer(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
          input_layernorm=norm, self_attention=self_attention
        ),
      ),
      mlp_layer=layer(
        module=mlp_layer.MLPLayer,
        submodules=TransformerLayerSubmodules(pre_mlp_layernorm=norm, mlp=dense),
      ),
      moe_layer=layer(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(pre_mlp_layernorm=norm, mlp=experts),
      ),
    ),
  )


MODELS = {
  "llama": Model(_HF | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, _MEGATRON),
  "qwen2": Model(
    _HF | {
      "architectures": ["Qwen2ForCausalLM"],
      "model_type": "qwen2",
      "num_key_value_heads": 2,
    },
    _MEGATRON | {"num_query_groups": 2, "add_qkv_bias": True},
    tied=True,
  ),
  "qwen3": Model(
    _HF | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    _MEGATRON | {"qk_layernorm": True},
    tied=True,
  ),
  "qwen3-moe": Model(
    _HF | _HF_EXPERTS | {
      "architectures": ["Qwen3MoeForCausalLM"],
      "model_type": "qwen3_moe",
      "num_experts": 8,
      "mlp_only_layers": [0],
    },
    _MEGATRON | _EXPERTS | {"qk_layernorm": True},
  ),
  "glm": Model(
    _HF | _HF_EXPERTS | {
      "architectures": ["Glm4MoeForCausalLM"],
      "model_type": "glm4_moe",
      "attention_bias": True,
      "use_qk_norm": True,
      "n_routed_experts": 8,
      "n_shared_experts": 1,
      "first_k_dense_replace": 1,
      "num_nextn_predict_layers": 1,
    },
    _MEGATRON | _EXPERTS | {
      "add_qkv_bias": True,
      "qk_layernorm": True,
      "moe_shared_expert_intermediate_size": 24,
      "moe_router_enable_expert_bias": True,
      "moe_router_score_function": "sigmoid",
      "mtp_num_layers": 1,
    },
  ),
  "deepseek": Model(_DEEPSEEK_HF, _DEEPSEEK),
  "deepseek-noq": Model(_DEEPSEEK_HF | {"q_lora_rank": None}, _DEEPSEEK | {"q_lora_rank": None}),
  "gpt-oss": Model(
    _HF | {
      "architectures": ["GptOssForCausalLM"],
      "model_type": "gpt_oss",
      "attention_bias": True,
      "num_local_experts": 8,
      "num_experts_per_tok": 2,
      "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    _MEGATRON | _EXPERTS | {
      "moe_ffn_hidden_size": 48,
      "moe_layer_freq": 1,
      "add_bias_linear": True,
      "softmax_type": "learnable",
    },
  ),
  "qwen3-next": GatedDelta(
    _HF | _HF_EXPERTS | {
      "architectures": ["Qwen3NextForCausalLM"],
      "model_type": "qwen3_next",
      "num_experts": 8,
      "shared_expert_intermediate_size": 48,
      "linear_num_key_heads": 4,
      "linear_num_value_heads": 8,
      "linear_key_head_dim": 4,
      "linear_value_head_dim": 6,
      "linear_conv_kernel_dim": 4,
      "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    },
    _MEGATRON | _EXPERTS | {
      "moe_layer_freq": 1,
      "qk_layernorm": True,
      "attention_output_gate": True,
      "experimental_attention_variant": "gated_delta_net",
      "linear_attention_freq": 4,
      "linear_num_key_heads": 4,
      "linear_num_value_heads": 8,
      "linear_key_head_dim": 4,
      "linear_value_head_dim": 6,
      "linear_conv_kernel_dim": 4,
      "moe_shared_expert_intermediate_size": 48,
      "moe_shared_expert_gate": True,
      "mtp_num_layers": 1,
      "activation_func": torch.nn.functional.silu,
    },
  ),
  "nemotron": Hybrid(
    _HF | {
      "architectures": ["NemotronHForCausalLM"],
      "model_type": "nemotron_h",
      "num_hidden_layers": 6,
      "hybrid_override_pattern": Hybrid.pattern,
      "mamba_num_heads": 8,
      "mamba_head_dim": 4,
      "n_groups": 4,
      "ssm_state_size": 6,
      "conv_kernel": 4,
      "n_routed_experts": 8,
      "n_shared_experts": 1,
      "moe_intermediate_size": 24,
      "moe_shared_expert_intermediate_size": 48,
      "num_experts_per_tok": 2,
    },
    _MEGATRON | {
      "num_layers": 6,
      "gated_linear_unit": False,
      "is_hybrid_model": True,
      "mamba_num_heads": 8,
      "mamba_head_dim": 4,
      "mamba_num_groups": 4,
      "mamba_state_dim": 6,
      "num_moe_experts": 8,
      "moe_ffn_hidden_size": 24,
      "moe_router_topk": 2,
      "moe_shared_expert_intermediate_size": 48,
      "moe_router_enable_expert_bias": True,
      "moe_router_score_function": "sigmoid",
    },
  ),
}  # fmt: skip
