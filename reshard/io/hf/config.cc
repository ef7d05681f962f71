// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "reshard/io/hf/architectures.h"
#include "reshard/io/hf/config_fields.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr std::string_view kQuantization = "quantization_config";
/// Early releases of compressed-tensors used the second.
constexpr std::array<std::string_view, 2> kQuantizationKeys = {kQuantization, "compression_config"};

bool is_quantization(const Json::Member& m) {
  return std::ranges::find(kQuantizationKeys, m.key) != kQuantizationKeys.end() &&
         m.value.object() != nullptr;
}

/// The name in a config. @pre is_convertible(dtype)
std::string_view torch_name_of(DType dtype) {
  if (dtype == DType::f32) return "float32";
  return dtype == DType::bf16 ? "bfloat16" : "float16";
}

std::string known_architectures() {
  std::string names;
  for (const auto& a : hf::architectures())
    names += (names.empty() ? "" : ", ") + std::string(a.name);
  return names;
}

bool is_of_type(const hf::Architecture& a, std::string_view type) {
  return !type.empty() && (type == a.model_types[0] || type == a.model_types[1]);
}

tl::unexpected<Error> unknown(const hf::ConfigFields& fields, const std::string* architecture,
                              const std::string& type) {
  if (architecture != nullptr && *architecture == "Gemma3ForConditionalGeneration")
    return fields.unsupported(
        "architecture \"Gemma3ForConditionalGeneration\" has a vision tower beside its decoder; "
        "give its text_config alone with architectures [\"Gemma3ForCausalLM\"], or read the whole "
        "checkpoint with hf or rules:FILE");
  return fields.unsupported(fmt::format(
      "{} {} is not known; known are {}; of any other, hf, fsdp, dtensor:FILE and rules:FILE take "
      "a "
      "checkpoint, tensor by tensor",
      architecture != nullptr ? "architecture" : "model_type",
      in_quotes(architecture != nullptr ? *architecture : type), known_architectures()));
}

/// A model class, or its decoder alone.
struct ModelClass {
  const hf::Architecture* of = nullptr;
  bool is_bare = false;
};

Result<ModelClass> find_class(const hf::ConfigFields& fields) {
  const auto said = RESHARD_TRY(fields.first_text("architectures"));
  const auto type = RESHARD_TRY(fields.text("model_type"));
  if (!said && !type) return fields.wrong("architectures is missing, must be a list with a name");
  const std::string_view name = said ? hf::without_fsdp(*said) : std::string_view();
  for (const auto& a : hf::architectures()) {
    if (said ? name != a.name && name != a.bare_name : !is_of_type(a, *type)) continue;
    if (type && !is_of_type(a, *type))
      return fields.unsupported(
          fmt::format("no known class fits: model_type is {}, must be \"{}\" for {}",
                      in_quotes(*type), a.model_types[0], name));
    return ModelClass{&a, said && name == a.bare_name};
  }
  return unknown(fields, said ? &*said : nullptr, type.value_or(""));
}

Result<std::optional<DType>> read_dtype(const hf::ConfigFields& fields) {
  for (const auto* key : {"dtype", "torch_dtype"}) {
    const auto text = RESHARD_TRY(fields.text(key));
    if (!text) continue;
    if (const auto dtype = dtype_from_torch_name(*text)) return dtype;
    return fields.wrong(
        fmt::format("{} must be a name such as \"bfloat16\", \"float16\" or \"float32\", "
                    "is {}",
                    key, in_quotes(*text)));
  }
  return std::nullopt;
}

Result<> read_sizes(const hf::ConfigFields& fields, const hf::Architecture& a,
                    ModelConfig& config) {
  config.hidden_size = RESHARD_TRY(fields.size("hidden_size"));
  config.intermediate_size = a.intermediate_size;
  if (a.intermediate_size == 0 || fields.has("intermediate_size"))
    config.intermediate_size = RESHARD_TRY(fields.size("intermediate_size"));
  config.num_attention_heads = RESHARD_TRY(fields.size("num_attention_heads"));
  config.vocab_size = RESHARD_TRY(fields.size("vocab_size"));
  if (a.listed_layers) return {};
  config.num_hidden_layers = RESHARD_TRY(fields.size("num_hidden_layers", hf::kMaxLayers));
  config.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  return {};
}

Result<> read_heads(const hf::ConfigFields& fields, const hf::Architecture& a,
                    ModelConfig& config) {
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

Result<> read_biases(const hf::ConfigFields& fields, const hf::Architecture& a,
                     ModelConfig& config) {
  using enum hf::AttentionBias;
  const bool said = RESHARD_TRY(fields.boolean("attention_bias", a.attention_bias_default));
  const bool mlp = RESHARD_TRY(fields.boolean("mlp_bias", false));
  const hf::AttentionBias which = a.attention_bias;
  config.attention_bias =
      which == qkv || (said && (which == qkv_configured || which == all_configured));
  config.attention_output_bias = said && which == all_configured;
  config.mlp_bias = a.mlp_bias && mlp;
  config.qk_norm = a.qk_norm;
  config.tie_word_embeddings = RESHARD_TRY(fields.boolean("tie_word_embeddings", a.tied_default));
  return {};
}

Result<std::string> read_quantization(const hf::ConfigFields& fields) {
  const auto quantization = RESHARD_TRY(fields.object(kQuantization));
  if (!quantization) return std::string();
  const auto method = RESHARD_TRY(quantization->text("quant_method"));
  return method && !method->empty() ? *method : "unknown";
}

/// The number of layers according to num_hidden_layers or, if that is absent, to the list.
Result<Index> number_of_layers(const hf::ConfigFields& fields) {
  if (const auto said = RESHARD_TRY(fields.optional_size("num_hidden_layers", hf::kMaxLayers)))
    return *said;
  for (const std::string_view key : hf::kLayerLists)
    if (const auto words = RESHARD_TRY(fields.texts(key)); words && !words->empty())
      return std::ssize(*words);
  if (const auto letters = RESHARD_TRY(fields.text(hf::kLayerPattern));
      letters && !letters->empty())
    return std::ssize(*letters);
  return fields.wrong("num_hidden_layers is missing, must be a positive integer");
}

/// Truncates or repeats a string or list to `size` entries.
template <class Entries>
void fit(Entries& entries, std::size_t size) {
  const std::size_t old = entries.size();
  for (std::size_t i = old; i < size; ++i)
    entries.push_back(typename Entries::value_type(entries[i % old]));
  entries.resize(size);
}

/// Truncates or repeats all lists and patterns with one entry per layer.
void fit_layers(Json::Object& members, Index old_layers, Index layers) {
  const auto size = static_cast<std::size_t>(layers);
  for (auto& [key, value] : members) {
    if (key == "num_hidden_layers" && !value.is_null()) value = Json(layers);
    if (key == "max_window_layers" && value.integer().value_or(0) > layers) value = Json(layers);
    if (key == hf::kLayerPattern && value.string() != nullptr) {
      std::string pattern = *value.string();
      if (std::ssize(pattern) == old_layers) fit(pattern, size);
      value = Json(std::move(pattern));
    }
    auto* list = value.array();
    if (list == nullptr) continue;
    if (key == "mlp_only_layers") {
      std::erase_if(*list,
                    [&](const Json& layer) { return layer.integer().value_or(0) >= layers; });
    } else if (key.find("layer") != key.npos && !key.starts_with("mtp_") &&
               std::ssize(*list) == old_layers) {
      fit(*list, size);
    }
  }
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, std::string_view source) {
  const auto fields = RESHARD_TRY(hf::ConfigFields::parse(text, source));
  const ModelClass found = RESHARD_TRY(find_class(fields));
  const hf::Architecture& a = *found.of;
  ModelConfig config;
  config.architecture = found.is_bare ? a.bare_name : a.name;
  config.model_type =
      RESHARD_TRY(fields.text("model_type")).value_or(std::string(a.model_types[0]));
  const auto dtype = RESHARD_TRY(read_dtype(fields));
  config.has_dtype = dtype.has_value();
  config.dtype = dtype.value_or(config.dtype);
  config.quantization = RESHARD_TRY(read_quantization(fields));
  RESHARD_TRY(read_sizes(fields, a, config));
  RESHARD_TRY(read_heads(fields, a, config));
  RESHARD_TRY(read_biases(fields, a, config));
  if (a.read != nullptr) RESHARD_TRY(a.read(fields, config));
  if (found.is_bare) {  // as AutoModel's save_pretrained names the tensors
    config.is_bare = true;
    config.has_head = false;
    config.decoder_prefix = "";
  }
  RESHARD_TRY(hf::check_weights(fields, config));
  return config;
}

Result<ModelConfig> read_config(const std::string& path) {
  return parse_config(RESHARD_TRY(read_text_file(path, kMaxConfigBytes)), path);
}

std::string model_type_of(const std::string& path) {
  const auto text = read_text_file(path, kMaxConfigBytes);
  const auto fields = text ? hf::ConfigFields::parse(*text, path) : fail(Code::not_found, "");
  const auto type = fields ? fields->text("model_type") : fail(Code::not_found, "");
  return type && *type ? **type : "";
}

Result<std::string> config_with_layers(std::string_view text, Index layers,
                                       std::string_view source) {
  auto fields = RESHARD_TRY(hf::ConfigFields::parse(text, source));
  if (layers < 1 || layers > hf::kMaxLayers)
    return fail(Code::invalid_argument, fmt::format("number of layers must be from 1 to {}, is {}",
                                                    hf::kMaxLayers, layers));
  const Index old_layers = RESHARD_TRY(number_of_layers(fields));
  Json json = std::move(fields).take();
  fit_layers(*json.object(), old_layers, layers);
  return json.dump(true) + "\n";
}

Result<std::string> config_of_plain_weights(std::string_view text, std::string_view source) {
  auto fields = RESHARD_TRY(hf::ConfigFields::parse(text, source));
  Json json = std::move(fields).take();
  bool found = std::erase_if(*json.object(), is_quantization) > 0;
  for (Json::Member& part : *json.object())
    if (Json::Object* members = part.value.object())
      found |= std::erase_if(*members, is_quantization) > 0;
  return found ? json.dump(true) + "\n" : std::string(text);
}

const Json* quantization_section(const Json& config) {
  if (config.object() == nullptr) return nullptr;
  for (const Json::Member& member : *config.object())
    if (is_quantization(member)) return &member.value;
  for (const Json::Member& part : *config.object())
    if (part.value.object() != nullptr)
      for (const Json::Member& member : *part.value.object())
        if (is_quantization(member)) return &member.value;
  return nullptr;
}

Result<ConfigOfDtype> config_of_dtype(std::string_view text, DType dtype, std::string_view source) {
  Json json = RESHARD_TRY(hf::ConfigFields::parse(text, source)).take();
  ConfigOfDtype out{.dtype = std::string(torch_name_of(dtype))};
  for (Json::Member& m : *json.object()) {
    if ((m.key != "dtype" && m.key != "torch_dtype") || m.value.string() == nullptr) continue;
    const auto said = dtype_from_torch_name(*m.value.string());
    if (!said || *said == dtype) continue;
    out.said = *m.value.string();
    m.value = Json(out.dtype);
  }
  out.text = out.said.empty() ? std::string(text) : json.dump(true) + "\n";
  return out;
}

}  // namespace reshard
