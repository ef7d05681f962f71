// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "reshard/io/config_fields.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr Index kMaxLayers = 1 << 16;
constexpr Index kMaxExperts = 1 << 16;
constexpr Index kMaxLayerExperts = 1 << 24;

enum class Bias { never, qkv, as_configured };

/// A model class of transformers: what of it is fixed, and what it takes for a key that is absent.
struct Architecture {
  std::string_view name;
  std::string_view model_type;
  Bias attention_bias;
  bool mlp_bias;  ///< whether it heeds that key
  bool qk_norm;
  bool moe;
  Index key_value_heads;  ///< default; 0: num_attention_heads
  Index head_dim;         ///< default; 0: hidden_size / num_attention_heads
};

constexpr std::array kArchitectures = {
    Architecture{"LlamaForCausalLM", "llama", Bias::as_configured, true, false, false, 0, 0},
    Architecture{"MistralForCausalLM", "mistral", Bias::never, false, false, false, 8, 0},
    Architecture{"Qwen2ForCausalLM", "qwen2", Bias::qkv, false, false, false, 32, 0},
    Architecture{"Qwen3ForCausalLM", "qwen3", Bias::as_configured, false, true, false, 32, 128},
    Architecture{"Qwen3MoeForCausalLM", "qwen3_moe", Bias::as_configured, false, true, true, 4, 0},
    Architecture{"MixtralForCausalLM", "mixtral", Bias::never, false, false, true, 8, 0},
};

std::string known_architectures() {
  std::string names;
  for (const auto& a : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(a.name);
  return names;
}

Result<const Architecture*> find_architecture(const ConfigFields& fields) {
  const auto name = RESHARD_TRY(fields.first_text("architectures"));
  const auto type = RESHARD_TRY(fields.text("model_type"));
  if (!name && !type) return fields.wrong("architectures is missing, must be a list with a name");
  for (const auto& a : kArchitectures) {
    if (name ? *name != a.name : *type != a.model_type) continue;
    if (type && *type != a.model_type)
      return fields.wrong(fmt::format("model_type is {}, must be \"{}\" for {}", in_quotes(*type),
                                      a.model_type, a.name));
    return &a;
  }
  return fields.unsupported(
      fmt::format("{} {} is not known; known are {}; describe others in a layout rules:FILE",
                  name ? "architecture" : "model_type", in_quotes(name ? *name : *type),
                  known_architectures()));
}

Result<DType> read_dtype(const ConfigFields& fields) {
  for (const auto* key : {"dtype", "torch_dtype"}) {
    const auto text = RESHARD_TRY(fields.text(key));
    if (!text) continue;
    if (const auto dtype = dtype_from_torch_name(*text)) return *dtype;
    return fields.wrong(
        fmt::format("{} must be a name such as \"bfloat16\", \"float16\" or \"float32\", "
                    "is {}",
                    key, in_quotes(*text)));
  }
  return DType::bf16;
}

Result<> read_sizes(const ConfigFields& fields, ModelConfig& config) {
  config.hidden_size = RESHARD_TRY(fields.size("hidden_size"));
  config.intermediate_size = RESHARD_TRY(fields.size("intermediate_size"));
  config.num_hidden_layers = RESHARD_TRY(fields.size("num_hidden_layers", kMaxLayers));
  config.num_attention_heads = RESHARD_TRY(fields.size("num_attention_heads"));
  config.vocab_size = RESHARD_TRY(fields.size("vocab_size"));
  config.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  return {};
}

Result<> read_heads(const ConfigFields& fields, const Architecture& a, ModelConfig& config) {
  const Index heads = config.num_attention_heads;
  const auto kv_heads = RESHARD_TRY(fields.optional_size("num_key_value_heads"));
  const bool by_default = !fields.mentions("num_key_value_heads") && a.key_value_heads > 0;
  config.num_key_value_heads = kv_heads.value_or(by_default ? a.key_value_heads : heads);
  if (heads % config.num_key_value_heads != 0)
    return fields.wrong(fmt::format(
        "num_attention_heads must be a multiple of num_key_value_heads, is {} with {}{}", heads,
        config.num_key_value_heads,
        by_default ? fmt::format(" (absent, {}'s default)", a.name) : std::string()));
  const auto head_dim = RESHARD_TRY(fields.optional_size("head_dim"));
  if (!head_dim && a.head_dim == 0 && config.hidden_size % heads != 0)
    return fields.wrong(
        fmt::format("hidden_size must be a multiple of num_attention_heads where head_dim "
                    "is absent, is {} with {}",
                    config.hidden_size, heads));
  config.head_dim = head_dim.value_or(a.head_dim > 0 ? a.head_dim : config.hidden_size / heads);
  return {};
}

Result<> read_biases(const ConfigFields& fields, const Architecture& a, ModelConfig& config) {
  const bool attention = RESHARD_TRY(fields.boolean("attention_bias", false));
  const bool mlp = RESHARD_TRY(fields.boolean("mlp_bias", false));
  config.attention_bias =
      a.attention_bias == Bias::qkv || (a.attention_bias == Bias::as_configured && attention);
  config.attention_output_bias = a.attention_bias == Bias::as_configured && attention;
  config.mlp_bias = a.mlp_bias && mlp;
  config.qk_norm = a.qk_norm;
  config.tie_word_embeddings = RESHARD_TRY(fields.boolean("tie_word_embeddings", false));
  return {};
}

Result<> read_experts(const ConfigFields& fields, const Architecture& a, ModelConfig& config) {
  if (!a.moe) return {};
  // Either name may stand for the other: transformers has written both for the same class.
  const auto experts = RESHARD_TRY(fields.optional_size("num_experts", kMaxExperts));
  const auto local = RESHARD_TRY(fields.optional_size("num_local_experts", kMaxExperts));
  if (experts && local && *experts != *local)
    return fields.wrong(fmt::format(
        "num_experts and num_local_experts must be equal, are {} and {}", *experts, *local));
  if (!experts && !local)
    return fields.wrong(
        "num_experts (or num_local_experts) is missing, must be a positive integer");
  config.num_experts = experts ? *experts : *local;
  if (config.num_experts * config.num_hidden_layers > kMaxLayerExperts)
    return fields.wrong(fmt::format("num_experts times num_hidden_layers must be at most {}, is {}",
                                    kMaxLayerExperts,
                                    config.num_experts * config.num_hidden_layers));
  if (a.model_type == "mixtral") {
    config.moe_intermediate_size = config.intermediate_size;
    for (LayerKind& kind : config.layers) kind.ffn = Ffn::experts;
    return {};
  }
  config.moe_intermediate_size = RESHARD_TRY(fields.size("moe_intermediate_size"));
  const Index step = RESHARD_TRY(fields.optional_size("decoder_sparse_step")).value_or(1);
  const auto dense = RESHARD_TRY(fields.indices("mlp_only_layers"));
  for (Index i = 0; i < config.num_hidden_layers; ++i)
    if ((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end())
      config.layers[static_cast<std::size_t>(i)].ffn = Ffn::experts;
  return {};
}

/// Checks that the bytes of the largest weights can be counted, stacked and fused ones included.
Result<> check_weights(const ConfigFields& fields, const ModelConfig& config) {
  struct Weight {
    std::string_view what;
    std::array<Index, 4> sizes;
  };
  const Index attention_heads = config.num_attention_heads + 2 * config.num_key_value_heads;
  const std::array weights = {
      Weight{"vocab_size x hidden_size", {config.vocab_size, config.hidden_size, 1, 1}},
      Weight{"attention heads x head_dim x hidden_size",
             {attention_heads, config.head_dim, config.hidden_size, 1}},
      Weight{"intermediate_size x hidden_size",
             {2, config.intermediate_size, config.hidden_size, 1}},
      Weight{"experts x moe_intermediate_size x hidden_size",
             {std::max<Index>(config.num_experts, 1), 2, config.moe_intermediate_size,
              config.hidden_size}},
  };
  for (const auto& weight : weights) {
    Index bytes = 8;
    for (Index size : weight.sizes)
      if (__builtin_mul_overflow(bytes, size, &bytes))
        return fields.wrong(
            fmt::format("{}: one weight has more bytes than 64 bits can count", weight.what));
  }
  return {};
}

/// Cuts or repeats what has an entry per layer.
void fit_layers(Json::Object& members, Index old_layers, Index layers) {
  for (auto& [key, value] : members) {
    auto* list = value.array();
    if (key == "num_hidden_layers") value = Json(layers);
    if (key == "max_window_layers" && value.integer().value_or(0) > layers) value = Json(layers);
    if (list == nullptr) continue;
    if (key == "mlp_only_layers") {
      std::erase_if(*list,
                    [&](const Json& layer) { return layer.integer().value_or(0) >= layers; });
    } else if (key.find("layer") != key.npos && std::ssize(*list) == old_layers) {
      for (auto i = list->size(); i < static_cast<std::size_t>(layers); ++i)
        list->push_back(Json((*list)[i % static_cast<std::size_t>(old_layers)]));
      list->resize(static_cast<std::size_t>(layers));
    }
  }
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, std::string_view source) {
  const auto fields = RESHARD_TRY(ConfigFields::parse(text, source));
  const Architecture& a = *RESHARD_TRY(find_architecture(fields));
  if (fields.has("quantization_config"))
    return fields.unsupported(
        "quantization_config: quantised checkpoints are not read through a config; "
        "describe their tensors in a layout rules:FILE");
  ModelConfig config;
  config.architecture = a.name;
  config.model_type = a.model_type;
  config.dtype = RESHARD_TRY(read_dtype(fields));
  RESHARD_TRY(read_sizes(fields, config));
  RESHARD_TRY(read_heads(fields, a, config));
  RESHARD_TRY(read_biases(fields, a, config));
  RESHARD_TRY(read_experts(fields, a, config));
  RESHARD_TRY(check_weights(fields, config));
  return config;
}

Result<ModelConfig> read_config(const std::string& path) {
  return parse_config(RESHARD_TRY(read_text_file(path, kMaxConfigBytes)), path);
}

Result<std::string> config_with_layers(std::string_view text, Index layers,
                                       std::string_view source) {
  auto fields = RESHARD_TRY(ConfigFields::parse(text, source));
  if (layers < 1 || layers > kMaxLayers)
    return fail(Code::invalid_argument,
                fmt::format("number of layers must be from 1 to {}, is {}", kMaxLayers, layers));
  const Index old_layers = RESHARD_TRY(fields.size("num_hidden_layers", kMaxLayers));
  Json json = std::move(fields).take();
  fit_layers(*json.object(), old_layers, layers);
  return json.dump(true) + "\n";
}

}  // namespace reshard
