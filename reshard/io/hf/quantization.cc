// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reshard/io/files/json.h"
#include "reshard/io/hf/compressed_tensors.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/hf/config_fields.h"

namespace reshard {
namespace {

constexpr std::string_view kKey = "quantization_config", kBlock = "weight_block_size",
                           kAlgo = "quant_algo";

/// Weights only; plain NVFP4 needs an input_scale for each module.
constexpr std::string_view kNvfp4WeightsOnly = "W4A16_NVFP4";

/// ModelOpt's name of a format.
struct Algo {
  std::string_view name, format;
};
constexpr std::array kAlgos = {
    Algo{"FP8", "fp8_tensor"},      Algo{"FP8_PER_CHANNEL_PER_TOKEN", "fp8_channel"},
    Algo{"FP8_PB_WO", "fp8_block"}, Algo{"MXFP8", "mxfp8"},
    Algo{"NVFP4", "nvfp4"},         Algo{kNvfp4WeightsOnly, "nvfp4"}};

tl::unexpected<Error> unread_method(std::string_view source, const std::string& what) {
  return fail(
      Code::unsupported,
      fmt::format("{}: {}: {} is not supported; supported are fp8 in e4m3 (with a {} or "
                  "one scale per weight), mxfp4, modelopt, compressed-tensors and fbgemm_fp8",
                  source, kKey, what, kBlock));
}

Json text_json(std::string_view text) { return Json(std::string(text)); }

Json names_json(const std::vector<std::string>& names) {
  Json::Array list;
  for (const std::string& name : names) list.emplace_back(name);
  return Json(std::move(list));
}

Result<QuantFormat> fp8(const hf::ConfigFields& q, std::string_view source) {
  const auto numbers = RESHARD_TRY(q.text("fmt")).value_or("e4m3");
  if (numbers != "e4m3") return unread_method(source, "fmt " + as_word(numbers));
  QuantFormat f = *quant_format_from_name("fp8_tensor");
  if (!q.has(kBlock)) return f;
  const auto block = RESHARD_TRY(q.indices(kBlock));
  constexpr Index kMax = 1 << 20;
  if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[0] > kMax || block[1] > kMax)
    return fail(Code::corrupt,
                fmt::format("{}: {}: {} must be two positive numbers, rows and columns", source,
                            kKey, kBlock));
  f.block_rows = static_cast<std::int32_t>(block[0]);
  f.block_cols = static_cast<std::int32_t>(block[1]);
  const auto scales = RESHARD_TRY(q.text("scale_fmt")).value_or("");
  if (scales == "ue8m0") f.rule = ScaleRule::up;
  return f;
}

Json::Object fp8_object(const StoredWeights& w, const std::vector<std::string>& plain) {
  const QuantFormat& format = w.format;
  Json::Object q{{"activation_scheme", text_json(w.static_inputs ? "static" : "dynamic")},
                 {"fmt", text_json("e4m3")}};
  if (!plain.empty()) q.push_back({"modules_to_not_convert", names_json(plain)});
  q.push_back({"quant_method", text_json("fp8")});
  if (format.rule != ScaleRule::exact) q.push_back({"scale_fmt", text_json("ue8m0")});
  if (format.block_rows == 0) return q;
  Json::Array block;
  block.emplace_back(std::int64_t{format.block_rows});
  block.emplace_back(std::int64_t{format.block_cols});
  q.push_back({std::string(kBlock), Json(std::move(block))});
  return q;
}

/// `q`: an object that has a quant_algo.
Result<StoredWeights> of_one_algo(const hf::ConfigFields& q, std::string_view source) {
  const auto algo = RESHARD_TRY(q.text(kAlgo)).value_or("unknown");
  const auto known =
      std::find_if(kAlgos.begin(), kAlgos.end(), [&](const Algo& a) { return a.name == algo; });
  if (known == kAlgos.end())
    return unread_method(source, fmt::format("{} {}", kAlgo, as_word(algo)));
  const StoredWeights weights{QuantMethod::modelopt, *quant_format_from_name(known->format)};
  const Index group = RESHARD_TRY(q.count("group_size", 0));
  if (weights.format.data == DType::f4 && group != 0 && group != weights.format.block_cols)
    return unread_method(source, fmt::format("{} {} in groups of {}", kAlgo, algo, group));
  return weights;
}

/// `q`: the object that has the quant_algo.
Result<StoredWeights> modelopt(const hf::ConfigFields& q, std::string_view source) {
  constexpr std::string_view kLayers = "quantized_layers";
  if (RESHARD_TRY(q.text(kAlgo)).value_or("") != "MIXED_PRECISION") return of_one_algo(q, source);
  const auto layers = RESHARD_TRY(q.object(kLayers));
  if (!layers || layers->empty())
    return unread_method(source, fmt::format("MIXED_PRECISION without {}", kLayers));
  StoredWeights weights{QuantMethod::modelopt, {}};
  std::vector<QuantFormat> formats;
  for (const std::string& module : layers->keys()) {
    const auto layer = RESHARD_TRY(layers->object(module));
    if (!layer) return unread_method(source, fmt::format("{} of {}", kLayers, as_word(module)));
    const QuantFormat format = RESHARD_TRY(of_one_algo(*layer, source)).format;
    weights.of_module[module] = format;
    if (std::ranges::find(formats, format) == formats.end()) formats.push_back(format);
  }
  weights.format = formats.front();
  weights.others.assign(formats.begin() + 1, formats.end());
  return weights;
}

Json::Object modelopt_object(const StoredWeights& w, const std::vector<std::string>& plain) {
  const QuantFormat& format = w.format;
  const auto known = std::find_if(kAlgos.begin(), kAlgos.end(), [&](const Algo& a) {
    return *quant_format_from_name(a.format) == format;
  });
  const bool weights_only = format.data == DType::f4 && !w.static_inputs;
  Json::Object q{{"ignore", names_json(plain)},
                 {std::string(kAlgo), text_json(weights_only ? kNvfp4WeightsOnly : known->name)}};
  if (format.data == DType::f4) q.push_back({"group_size", Json(std::int64_t{format.block_cols})});
  q.push_back({"quant_method", text_json(name(QuantMethod::modelopt))});
  return q;
}

Json::Object object_of(const StoredWeights& w, const std::vector<std::string>& plain) {
  if (w.method == QuantMethod::fp8) return fp8_object(w, plain);
  if (w.method == QuantMethod::modelopt) return modelopt_object(w, plain);
  if (w.method == QuantMethod::compressed_tensors)
    return hf::compressed_tensors_object(w.format, w.static_inputs, plain);
  Json::Object q;
  // The default of transformers' FbgemmFp8Config.
  if (w.method == QuantMethod::fbgemm_fp8)
    q.push_back({"activation_scale_ub", Json(Json::Number{"1200.0"})});
  if (!plain.empty()) q.push_back({"modules_to_not_convert", names_json(plain)});
  q.push_back({"quant_method", text_json(name(w.method))});
  return q;
}

/// The text of a member; empty if there is none.
std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->string() != nullptr ? *value->string() : "";
}

bool says_caches(const Json& section) {
  for (const std::string_view key : {"kv_cache_scheme", "kv_cache_quant_algo"})
    if (const Json* value = section.find(key); value != nullptr && !value->is_null()) return true;
  const Json* inner = section.find("quantization");
  return inner != nullptr && says_caches(*inner);
}

SaidQuantisation said_by(const Json& section) {
  std::string method = text_of(section, "quant_method");
  if (method.empty()) method = "unknown";
  std::string form = fmt::format("quant_method {}", in_quotes(method));
  for (const std::string_view key : {std::string_view("format"), kAlgo})
    if (const std::string text = text_of(section, key); !text.empty())
      form += fmt::format(", {} {}", key, in_quotes(text));
  return {std::move(method), std::move(form), says_caches(section)};
}

}  // namespace

StoredFormats StoredWeights::formats() const {
  StoredFormats out{{format}, of_module};
  out.all.insert(out.all.end(), others.begin(), others.end());
  return out;
}

Result<SaidQuantisation> said_quantisation(std::string_view text, std::string_view source) {
  const Json config = RESHARD_TRY(hf::ConfigFields::parse(text, source)).take();
  if (const Json* section = quantization_section(config)) return said_by(*section);
  return SaidQuantisation{};
}

Result<SaidQuantisation> said_quantisation_beside(std::string_view text, std::string_view source) {
  const Json file = RESHARD_TRY(hf::ConfigFields::parse(text, source)).take();
  const Json* inner = file.find("quantization");
  SaidQuantisation said{std::string(name(QuantMethod::modelopt)), "modelopt", says_caches(file)};
  if (inner != nullptr)
    said.form += fmt::format(", {} {}", kAlgo, in_quotes(text_of(*inner, kAlgo)));
  return said;
}

Result<StoredWeights> stored_weights(std::string_view text, std::string_view source) {
  const auto config = RESHARD_TRY(hf::ConfigFields::parse(text, source));
  const auto q = RESHARD_TRY(config.object(kKey));
  if (!q) return unread_method(source, "none");
  const auto method = RESHARD_TRY(q->text("quant_method")).value_or("unknown");
  if (method == "fp8") return StoredWeights{QuantMethod::fp8, RESHARD_TRY(fp8(*q, source))};
  if (method == "mxfp4") return StoredWeights{QuantMethod::mxfp4, *quant_format_from_name("mxfp4")};
  if (method == "fbgemm_fp8")
    return StoredWeights{QuantMethod::fbgemm_fp8, *quant_format_from_name("fp8_channel")};
  if (method == "compressed-tensors") {
    const auto formats =
        RESHARD_TRY(hf::compressed_tensors_formats(*q, source, StoredWeights::kMaxFormats));
    StoredWeights weights{QuantMethod::compressed_tensors, formats.front()};
    weights.others.assign(formats.begin() + 1, formats.end());
    return weights;
  }
  if (method != "modelopt") return unread_method(source, "quant_method " + as_word(method));
  const auto inner = RESHARD_TRY(q->object("quantization"));
  return modelopt(inner ? *inner : *q, source);
}

Result<StoredWeights> stored_weights_beside(std::string_view text, std::string_view source) {
  const auto file = RESHARD_TRY(hf::ConfigFields::parse(text, source));
  const auto q = RESHARD_TRY(file.object("quantization"));
  if (!q) return file.wrong("has no object 'quantization'");
  return modelopt(*q, source);
}

Result<std::string> config_of_quantised_weights(std::string_view text, const StoredWeights& weights,
                                                const std::vector<std::string>& plain,
                                                std::string_view source) {
  if (!supports(weights.method, weights.format))
    return unread_method(source,
                         fmt::format("{} of {}", to_string(weights.format), name(weights.method)));
  const std::string without = RESHARD_TRY(config_of_plain_weights(text, source));
  auto fields = RESHARD_TRY(hf::ConfigFields::parse(without, source));
  Json json = std::move(fields).take();
  json.object()->push_back({std::string(kKey), Json(object_of(weights, plain))});
  return json.dump(true) + "\n";
}

}  // namespace reshard
