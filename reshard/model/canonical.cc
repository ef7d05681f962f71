// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/canonical.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "reshard/model/naming/misfits.h"
#include "reshard/model/names.h"

namespace reshard {
namespace {

/// Adds the tensors of one model, in order.
class Writer {
 public:
  Writer(const ModelConfig& config, ModelSpec& model) : c_(config), names_(config), model_(model) {}

  Result<> write() {
    RESHARD_TRY(add(names_.embedding(), {c_.vocab_size, c_.hidden_size}));
    for (Index i = 0; i < c_.num_hidden_layers; ++i) RESHARD_TRY(layer(i));
    RESHARD_TRY(add(names_.final_norm(), {c_.hidden_size}));
    if (!c_.tie_word_embeddings && c_.has_head)
      RESHARD_TRY(add(names_.lm_head(), {c_.vocab_size, c_.hidden_size}));
    for (Index m = 0; m < c_.num_mtp; ++m) RESHARD_TRY(mtp(m));
    return {};
  }

 private:
  Result<> add(std::string name, Dims shape) { return add(std::move(name), shape, c_.dtype); }
  Result<> add(std::string name, Dims shape, DType dtype, MergedDims merged = {}) {
    RESHARD_TRY(model_.add(std::move(name), shape, dtype, merged));
    return {};
  }

  /// A linear layer of the mixer.
  Result<> mixer_linear(LayerAt at, const char* name, Index out, Index in, bool bias = false) {
    RESHARD_TRY(add(names_.mixer(at, std::string(name) + ".weight"), {out, in}));
    if (bias) RESHARD_TRY(add(names_.mixer(at, std::string(name) + ".bias"), {out}));
    return {};
  }

  Result<> layer(LayerAt at) {
    const LayerKind kind = names_.kind(at);
    RESHARD_TRY(mixer(at, kind.mixer));
    RESHARD_TRY(ffn(at, kind.ffn));
    const bool both = kind.mixer != Mixer::none && kind.ffn != Ffn::none;
    RESHARD_TRY(add(names_.mixer_norm(at), {c_.hidden_size}));
    if (both) RESHARD_TRY(add(names_.ffn_norm(at), {c_.hidden_size}));
    if (!c_.sandwich_norms) return {};
    RESHARD_TRY(add(names_.mixer_post_norm(at), {c_.hidden_size}));
    return add(names_.ffn_post_norm(at), {c_.hidden_size});
  }

  Result<> mixer(LayerAt at, Mixer kind) {
    switch (kind) {
      case Mixer::attention: return attention(at);
      case Mixer::mla: return mla(at);
      case Mixer::mamba2: return mamba2(at);
      case Mixer::gated_delta: return gated_delta(at);
      case Mixer::none: break;
    }
    return {};
  }

  Result<> attention(LayerAt at) {
    const Index q = c_.num_attention_heads * c_.head_dim, kv = c_.num_key_value_heads * c_.head_dim;
    const Index gate = c_.attention_gate ? 2 : 1;
    RESHARD_TRY(mixer_linear(at, "q_proj", gate * q, c_.hidden_size, c_.attention_bias));
    RESHARD_TRY(mixer_linear(at, "k_proj", kv, c_.hidden_size, c_.attention_bias));
    RESHARD_TRY(mixer_linear(at, "v_proj", kv, c_.hidden_size, c_.attention_bias));
    RESHARD_TRY(mixer_linear(at, "o_proj", c_.hidden_size, q, c_.attention_output_bias));
    if (c_.attention_sinks) RESHARD_TRY(add(names_.mixer(at, "sinks"), {c_.num_attention_heads}));
    if (c_.qk_norm) {
      RESHARD_TRY(add(names_.mixer(at, "q_norm.weight"), {c_.head_dim}));
      RESHARD_TRY(add(names_.mixer(at, "k_norm.weight"), {c_.head_dim}));
    }
    return {};
  }

  Result<> mla(LayerAt at) {
    const MlaConfig& m = c_.mla;
    const Index heads = c_.num_attention_heads, q = heads * (m.nope_dim + m.rope_dim);
    if (m.q_rank == 0) {
      RESHARD_TRY(mixer_linear(at, "q_proj", q, c_.hidden_size));
    } else {
      RESHARD_TRY(mixer_linear(at, "q_a_proj", m.q_rank, c_.hidden_size, m.bias));
      RESHARD_TRY(add(names_.mixer(at, "q_a_layernorm.weight"), {m.q_rank}));
      RESHARD_TRY(mixer_linear(at, "q_b_proj", q, m.q_rank));
    }
    RESHARD_TRY(
        mixer_linear(at, "kv_a_proj_with_mqa", m.kv_rank + m.rope_dim, c_.hidden_size, m.bias));
    RESHARD_TRY(add(names_.mixer(at, "kv_a_layernorm.weight"), {m.kv_rank}));
    RESHARD_TRY(mixer_linear(at, "kv_b_proj", heads * (m.nope_dim + m.value_dim), m.kv_rank));
    return mixer_linear(at, "o_proj", c_.hidden_size, heads * m.value_dim, m.bias);
  }

  Result<> mamba2(LayerAt at) {
    const Mamba2Config& m = c_.mamba2;
    const Index packed = m.inner() + 2 * m.groups * m.state;
    RESHARD_TRY(mixer_linear(at, "in_proj", m.inner() + packed + m.heads, c_.hidden_size, m.bias));
    RESHARD_TRY(add(names_.mixer(at, "conv1d.weight"), {packed, 1, m.kernel}));
    if (m.conv_bias) RESHARD_TRY(add(names_.mixer(at, "conv1d.bias"), {packed}));
    for (const char* per_head : {"A_log", "D", "dt_bias"})
      RESHARD_TRY(add(names_.mixer(at, per_head), {m.heads}));
    RESHARD_TRY(add(names_.mixer(at, "norm.weight"), {m.inner()}));
    return mixer_linear(at, "out_proj", c_.hidden_size, m.inner(), m.bias);
  }

  Result<> gated_delta(LayerAt at) {
    const GatedDeltaConfig& g = c_.gated_delta;
    const Index keys = g.key_heads * g.key_dim, values = g.value_heads * g.value_dim;
    RESHARD_TRY(mixer_linear(at, "in_proj_qkvz", 2 * keys + 2 * values, c_.hidden_size));
    RESHARD_TRY(mixer_linear(at, "in_proj_ba", 2 * g.value_heads, c_.hidden_size));
    RESHARD_TRY(add(names_.mixer(at, "conv1d.weight"), {2 * keys + values, 1, g.kernel}));
    RESHARD_TRY(add(names_.mixer(at, "A_log"), {g.value_heads}));
    RESHARD_TRY(add(names_.mixer(at, "dt_bias"), {g.value_heads}));
    RESHARD_TRY(add(names_.mixer(at, "norm.weight"), {g.value_dim}));
    return mixer_linear(at, "out_proj", c_.hidden_size, values);
  }

  Result<> ffn(LayerAt at, Ffn kind) {
    if (kind == Ffn::none) return {};
    return kind == Ffn::experts ? experts(at) : mlp(at);
  }

  Result<> mlp(LayerAt at) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      if (name[0] == 'g' && !c_.gated_mlp) continue;
      const bool down = name[0] == 'd';
      const Index out = down ? c_.hidden_size : c_.intermediate_size;
      const std::string full = names_.ffn(at, name);
      RESHARD_TRY(add(full + ".weight", {out, down ? c_.intermediate_size : c_.hidden_size}));
      if (c_.mlp_bias) RESHARD_TRY(add(full + ".bias", {out}));
    }
    return {};
  }

  Result<> experts(LayerAt at) {
    RESHARD_TRY(add(names_.router(at), {c_.num_experts, c_.hidden_size}));
    if (c_.router_bias) RESHARD_TRY(add(names_.router_bias(at), {c_.num_experts}));
    if (c_.router_expert_bias)
      RESHARD_TRY(add(names_.router_expert_bias(at), {c_.num_experts}, DType::f32));
    if (c_.moe_latent_size > 0) {
      RESHARD_TRY(
          add(names_.ffn(at, "fc1_latent_proj.weight"), {c_.moe_latent_size, c_.hidden_size}));
      RESHARD_TRY(
          add(names_.ffn(at, "fc2_latent_proj.weight"), {c_.hidden_size, c_.moe_latent_size}));
    }
    RESHARD_TRY(c_.stacked_experts ? stacked_experts(at) : single_experts(at));
    return c_.shared_expert_size > 0 ? shared_expert(at) : Result<>{};
  }

  Result<> single_experts(LayerAt at) {
    const Index inner = c_.moe_intermediate_size, width = c_.expert_width();
    for (Index e = 0; e < c_.num_experts; ++e) {
      if (c_.gated_mlp) RESHARD_TRY(add(names_.expert_gate(at, e), {inner, width}));
      RESHARD_TRY(add(names_.expert_up(at, e), {inner, width}));
      RESHARD_TRY(add(names_.expert_down(at, e), {width, inner}));
    }
    return {};
  }

  /// Gate and up columns alternate, so the index space has an extra dimension of size 2.
  Result<> stacked_experts(LayerAt at) {
    const Index n = c_.num_experts, h = c_.hidden_size, inner = c_.moe_intermediate_size;
    RESHARD_TRY(add(names_.ffn(at, "experts.gate_up_proj"), {n, h, inner, 2}, c_.dtype, {1U << 2}));
    RESHARD_TRY(
        add(names_.ffn(at, "experts.gate_up_proj_bias"), {n, inner, 2}, c_.dtype, {1U << 1}));
    RESHARD_TRY(add(names_.ffn(at, "experts.down_proj"), {n, inner, h}));
    return add(names_.ffn(at, "experts.down_proj_bias"), {n, h});
  }

  Result<> shared_expert(LayerAt at) {
    const Index inner = c_.shared_expert_size, h = c_.hidden_size;
    if (c_.gated_mlp) RESHARD_TRY(add(names_.shared_expert(at, "gate_proj.weight"), {inner, h}));
    RESHARD_TRY(add(names_.shared_expert(at, "up_proj.weight"), {inner, h}));
    RESHARD_TRY(add(names_.shared_expert(at, "down_proj.weight"), {h, inner}));
    if (c_.shared_expert_gate)
      RESHARD_TRY(add(names_.ffn(at, "shared_expert_gate.weight"), {1, h}));
    return {};
  }

  Result<> mtp(Index module) {
    const auto names = names_.mtp(module);
    RESHARD_TRY(add(names.embedding_norm, {c_.hidden_size}));
    RESHARD_TRY(add(names.hidden_norm, {c_.hidden_size}));
    RESHARD_TRY(add(names.projection, {c_.hidden_size, 2 * c_.hidden_size}));
    for (std::size_t i = 0; i < c_.mtp_block.size(); ++i)
      RESHARD_TRY(layer(LayerAt(static_cast<Index>(i), module)));
    return add(names.final_norm, {c_.hidden_size});
  }

  const ModelConfig& c_;
  HfNames names_;
  ModelSpec& model_;
};

}  // namespace

Result<ModelSpec> canonical_tensors(const ModelConfig& config) {
  if (static_cast<Index>(config.layers.size()) < config.num_hidden_layers)
    return fail(
        Code::invalid_argument,
        fmt::format("the config has {} layers but describes only {}; it must describe all of them",
                    config.num_hidden_layers, config.layers.size()));
  ModelSpec model;
  RESHARD_TRY(Writer(config, model).write());
  return model;
}

Result<> check_against(const ModelSpec& checkpoint, const ModelSpec& config) {
  std::vector<std::string_view> misfits;
  for (const CanonicalTensor& have : checkpoint.tensors())
    if (!config.find(have.name)) misfits.push_back(have.name);
  for (const CanonicalTensor& want : config.tensors()) {
    const auto id = checkpoint.find(want.name);
    if (!id)
      return fail(
          Code::not_found,
          fmt::format("tensor '{}' is missing; the config requires it with shape {}{}", want.name,
                      to_string(want.stored_shape()), instead_of(want.name, misfits)));
    if (checkpoint[*id].stored_shape() != want.stored_shape())
      return fail(Code::corrupt, fmt::format("tensor '{}' has shape {} but the config says {}",
                                             want.name, to_string(checkpoint[*id].stored_shape()),
                                             to_string(want.stored_shape())));
  }
  if (misfits.empty()) return {};
  const CanonicalTensor& first = checkpoint[*checkpoint.find(misfits.front())];
  return fail(Code::invalid_argument, not_of_config(misfits, first.stored_shape()));
}

}  // namespace reshard
