// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/io/hf/architectures.h"

namespace reshard::hf {
namespace {

/// A kind of layer of Nemotron-H: its letter in patterns and its names in lists. transformers
/// before 5.0 wrote the second name.
struct HybridLayer {
  char letter;
  std::array<std::string_view, 2> words;
  LayerKind kind;
};

constexpr std::array kHybridLayers = {
    HybridLayer{'M', {"linear_attention", "mamba"}, {Mixer::mamba2, Ffn::none}},
    HybridLayer{'*', {"full_attention", "attention"}, {Mixer::attention, Ffn::none}},
    HybridLayer{'E', {"moe", "moe"}, {Mixer::none, Ffn::experts}},
    HybridLayer{'-', {"mlp", "mlp"}, {Mixer::none, Ffn::dense}},
};

Result<std::vector<LayerKind>> kinds_of_words(const ConfigFields& fields, std::string_view key,
                                              const std::vector<std::string>& words) {
  std::vector<LayerKind> kinds;
  for (const std::string& word : words) {
    const auto* found = std::find_if(
        kHybridLayers.begin(), kHybridLayers.end(),
        [&](const HybridLayer& layer) { return word == layer.words[0] || word == layer.words[1]; });
    if (found == kHybridLayers.end())
      return fields.wrong(fmt::format(
          "{} must be a list of linear_attention, full_attention, moe and mlp, one is {}", key,
          in_quotes(word)));
    kinds.push_back(found->kind);
  }
  return kinds;
}

Result<std::vector<LayerKind>> kinds_of_pattern(const ConfigFields& fields, std::string_view key,
                                                const std::string& pattern) {
  std::vector<LayerKind> kinds;
  for (const char letter : pattern) {
    const auto* found =
        std::find_if(kHybridLayers.begin(), kHybridLayers.end(),
                     [&](const HybridLayer& layer) { return letter == layer.letter; });
    if (found == kHybridLayers.end())
      return fields.wrong(fmt::format(
          "{} must be of the letters M (Mamba), * (attention), E (experts) and - (MLP), "
          "one is {}",
          key, in_quotes(std::string(1, letter))));
    kinds.push_back(found->kind);
  }
  return kinds;
}

/// The layers by a list or, if there is none, by a pattern; empty if there is neither.
Result<std::vector<LayerKind>> hybrid_layers(const ConfigFields& fields,
                                             std::span<const std::string_view> lists,
                                             std::string_view pattern) {
  for (const std::string_view key : lists)
    if (const auto words = RESHARD_TRY(fields.texts(key)))
      return kinds_of_words(fields, key, *words);
  const auto letters = RESHARD_TRY(fields.text(pattern));
  if (letters) return kinds_of_pattern(fields, pattern, *letters);
  return std::vector<LayerKind>{};
}

Result<> read_hybrid_layers(const ConfigFields& fields, ModelConfig& config) {
  config.layers = RESHARD_TRY(hybrid_layers(fields, kLayerLists, kLayerPattern));
  config.num_hidden_layers = static_cast<Index>(config.layers.size());
  if (config.layers.empty())
    return fields.wrong(fmt::format("{} (or {}) is missing or empty, must name each layer",
                                    kLayerPattern, kLayerLists[0]));
  const auto said = RESHARD_TRY(fields.optional_size("num_hidden_layers", kMaxLayers));
  if (said && *said != config.num_hidden_layers)
    return fields.wrong(fmt::format("num_hidden_layers is {}, but {} layers are listed", *said,
                                    config.num_hidden_layers));
  if (config.num_hidden_layers > kMaxLayers)
    return fields.wrong(
        fmt::format("num_hidden_layers must be at most {}, but {} layers are listed", kMaxLayers,
                    config.num_hidden_layers));
  return {};
}

/// As transformers does: a list wins over a pattern, unless it is the default list.
Result<std::vector<LayerKind>> read_mtp_block(const ConfigFields& fields) {
  constexpr std::array<std::string_view, 1> kList = {"mtp_layers_block_type"};
  constexpr std::string_view kPattern = "mtp_hybrid_override_pattern";
  const std::vector<LayerKind> usual = {{Mixer::attention, Ffn::none}, {Mixer::none, Ffn::experts}};
  auto block = RESHARD_TRY(hybrid_layers(fields, kList, kPattern));
  if (block.empty()) return usual;
  if (const auto pattern = RESHARD_TRY(fields.text(kPattern)); pattern && block == usual)
    block = RESHARD_TRY(kinds_of_pattern(fields, kPattern, *pattern));
  if (block.empty() || std::ssize(block) > kMaxMtp)
    return fields.wrong(fmt::format("{} must have from 1 to {} layers", kPattern, kMaxMtp));
  return block;
}

Result<> read_mamba2(const ConfigFields& fields, ModelConfig& config) {
  Mamba2Config& m = config.mamba2;
  m.heads = RESHARD_TRY(fields.optional_size("mamba_num_heads")).value_or(128);
  m.head_dim = RESHARD_TRY(fields.optional_size("mamba_head_dim")).value_or(64);
  m.groups = RESHARD_TRY(fields.optional_size("n_groups")).value_or(8);
  m.state = RESHARD_TRY(fields.optional_size("ssm_state_size")).value_or(128);
  m.kernel = RESHARD_TRY(fields.optional_size("conv_kernel")).value_or(4);
  m.bias = RESHARD_TRY(fields.boolean("use_bias", false));
  m.conv_bias = RESHARD_TRY(fields.boolean("use_conv_bias", true));
  if (m.heads % m.groups == 0) return {};
  return fields.wrong(fmt::format("mamba_num_heads must be a multiple of n_groups, is {} with {}",
                                  m.heads, m.groups));
}

bool has_experts(const std::vector<LayerKind>& layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerKind& kind) { return kind.ffn == Ffn::experts; });
}

}  // namespace

Result<> read_linear_layers(const ConfigFields& fields, ModelConfig& config) {
  const auto types = RESHARD_TRY(fields.texts("layer_types"));
  const Index interval = RESHARD_TRY(fields.optional_size("full_attention_interval")).value_or(4);
  if (types && std::ssize(*types) != config.num_hidden_layers)
    return fields.wrong(fmt::format("num_hidden_layers is {}, but layer_types has {} entries",
                                    config.num_hidden_layers, types->size()));
  for (Index i = 0; i < config.num_hidden_layers; ++i) {
    LayerKind& kind = config.layers[static_cast<std::size_t>(i)];
    const std::string word = types                     ? (*types)[static_cast<std::size_t>(i)]
                             : (i + 1) % interval == 0 ? "full_attention"
                                                       : "linear_attention";
    if (word == "linear_attention") kind.mixer = Mixer::gated_delta;
    if (word != "linear_attention" && word != "full_attention")
      return fields.wrong(fmt::format(
          "layer_types must be a list of linear_attention and full_attention, one is {}",
          in_quotes(word)));
  }
  return {};
}

Result<> read_nemotron_h(const ConfigFields& fields, ModelConfig& config) {
  RESHARD_TRY(read_hybrid_layers(fields, config));
  RESHARD_TRY(read_mamba2(fields, config));
  // The key under which the class was first published.
  if (!fields.has("head_dim"))
    config.head_dim =
        RESHARD_TRY(fields.optional_size("attention_head_dim")).value_or(config.head_dim);
  config.gated_mlp = false;
  // The class never ties its head, whatever the key says.
  config.tie_word_embeddings = false;
  auto block = RESHARD_TRY(read_mtp_block(fields));
  RESHARD_TRY(read_mtp(fields, 0, MtpNames::nemotron, std::move(block), config));
  if (!has_experts(config.layers) && !has_experts(config.mtp_block)) return {};
  if (config.mlp_bias)
    return fields.unsupported("mlp_bias must be false where layers have experts, is true");
  config.num_experts =
      RESHARD_TRY(read_num_experts(fields, {"n_routed_experts", "num_local_experts"}));
  config.moe_intermediate_size = RESHARD_TRY(fields.size("moe_intermediate_size"));
  config.moe_latent_size = RESHARD_TRY(fields.optional_size("moe_latent_size")).value_or(0);
  config.shared_expert_size =
      RESHARD_TRY(fields.optional_size("moe_shared_expert_intermediate_size")).value_or(7688);
  config.router_expert_bias = true;
  return {};
}

}  // namespace reshard::hf
