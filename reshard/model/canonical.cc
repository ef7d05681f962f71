// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/canonical.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "reshard/model/names.h"

namespace reshard {
namespace {

/// Adds the tensors of one model in order; the first error stops all later adds.
class Writer {
 public:
  Writer(const ModelConfig& config, ModelSpec& model) : c_(config), names_(config), model_(model) {}

  Result<> write() {
    RESHARD_TRY(add(names_.embedding(), {c_.vocab_size, c_.hidden_size}));
    for (Index i = 0; i < c_.num_hidden_layers; ++i) {
      RESHARD_TRY(attention(i));
      if (c_.is_moe_layer(i)) {
        RESHARD_TRY(experts(i));
      } else {
        RESHARD_TRY(mlp(i));
      }
      RESHARD_TRY(add(names_.layer(i, "input_layernorm.weight"), {c_.hidden_size}));
      RESHARD_TRY(add(names_.layer(i, "post_attention_layernorm.weight"), {c_.hidden_size}));
    }
    RESHARD_TRY(add(names_.final_norm(), {c_.hidden_size}));
    if (!c_.tie_word_embeddings)
      RESHARD_TRY(add(names_.lm_head(), {c_.vocab_size, c_.hidden_size}));
    return {};
  }

 private:
  Result<> add(std::string name, Dims shape) { return add(std::move(name), shape, c_.dtype); }
  Result<> add(std::string name, Dims shape, DType dtype) {
    RESHARD_TRY(model_.add(std::move(name), shape, dtype));
    return {};
  }

  Result<> projection(Index i, const std::string& name, Index out, Index in, bool bias) {
    RESHARD_TRY(add(names_.layer(i, name + ".weight"), {out, in}));
    if (bias) RESHARD_TRY(add(names_.layer(i, name + ".bias"), {out}));
    return {};
  }

  Result<> attention(Index i) {
    const Index q = c_.num_attention_heads * c_.head_dim, kv = c_.num_key_value_heads * c_.head_dim;
    RESHARD_TRY(projection(i, "self_attn.q_proj", q, c_.hidden_size, c_.attention_bias));
    RESHARD_TRY(projection(i, "self_attn.k_proj", kv, c_.hidden_size, c_.attention_bias));
    RESHARD_TRY(projection(i, "self_attn.v_proj", kv, c_.hidden_size, c_.attention_bias));
    RESHARD_TRY(projection(i, "self_attn.o_proj", c_.hidden_size, q, c_.attention_output_bias));
    if (c_.qk_norm) {
      RESHARD_TRY(add(names_.layer(i, "self_attn.q_norm.weight"), {c_.head_dim}));
      RESHARD_TRY(add(names_.layer(i, "self_attn.k_norm.weight"), {c_.head_dim}));
    }
    return {};
  }

  Result<> mlp(Index i) {
    RESHARD_TRY(projection(i, "mlp.gate_proj", c_.intermediate_size, c_.hidden_size, c_.mlp_bias));
    RESHARD_TRY(projection(i, "mlp.up_proj", c_.intermediate_size, c_.hidden_size, c_.mlp_bias));
    return projection(i, "mlp.down_proj", c_.hidden_size, c_.intermediate_size, c_.mlp_bias);
  }

  Result<> experts(Index i) {
    RESHARD_TRY(add(names_.router(i), {c_.num_experts, c_.hidden_size}));
    if (c_.router_expert_bias)
      RESHARD_TRY(add(names_.router_bias(i), {c_.num_experts}, DType::f32));
    const Index inner = c_.moe_intermediate_size;
    for (Index e = 0; e < c_.num_experts; ++e) {
      RESHARD_TRY(add(names_.expert_gate(i, e), {inner, c_.hidden_size}));
      RESHARD_TRY(add(names_.expert_up(i, e), {inner, c_.hidden_size}));
      RESHARD_TRY(add(names_.expert_down(i, e), {c_.hidden_size, inner}));
    }
    return {};
  }

  const ModelConfig& c_;
  HfNames names_;
  ModelSpec& model_;
};

}  // namespace

namespace {

/// Appends a number without a string of its own: models have tens of thousands of names.
void append(std::string& text, Index number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

std::string layer_prefix(Index i) {
  std::string text;
  text.reserve(64);
  text += "model.layers.";
  append(text, i);
  text += '.';
  return text;
}

}  // namespace

std::string HfNames::layer(Index i, const std::string& rest) const {
  return layer_prefix(i) += rest;
}

std::string HfNames::expert(Index i, Index e, const char* projection) const {
  std::string text = layer_prefix(i);
  text += mixtral_ ? "block_sparse_moe.experts." : "mlp.experts.";
  append(text, e);
  text += '.';
  text += projection;
  text += ".weight";
  return text;
}

Result<ModelSpec> canonical_tensors(const ModelConfig& config) {
  ModelSpec model;
  RESHARD_TRY(Writer(config, model).write());
  return model;
}

Result<> check_against(const ModelSpec& checkpoint, const ModelSpec& config) {
  for (const CanonicalTensor& want : config.tensors()) {
    const auto id = checkpoint.find(want.name);
    if (!id)
      return fail(Code::not_found,
                  fmt::format("tensor '{}' is missing; the config wants it with shape {}",
                              want.name, to_string(want.shape)));
    if (checkpoint[*id].shape != want.shape)
      return fail(Code::corrupt,
                  fmt::format("tensor '{}' has shape {}; by the config it is {}", want.name,
                              to_string(checkpoint[*id].shape), to_string(want.shape)));
  }
  for (const CanonicalTensor& have : checkpoint.tensors())
    if (!config.find(have.name))
      return fail(Code::invalid_argument,
                  fmt::format("tensor '{}' of shape {} is not part of the config's architecture",
                              have.name, to_string(have.shape)));
  return {};
}

}  // namespace reshard
