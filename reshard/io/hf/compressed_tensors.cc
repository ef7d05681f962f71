// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/compressed_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reshard/model/quant/files.h"

namespace reshard::hf {
namespace {

constexpr std::string_view kGroups = "config_groups";
constexpr Index kMaxBlock = 1 << 20;

QuantFormat named(std::string_view name) { return *quant_format_from_name(name); }

tl::unexpected<Error> unread_scheme(std::string_view source, const std::string& what) {
  return fail(
      Code::unsupported,
      fmt::format("{}: quantization_config: {} is not supported; compressed-tensors "
                  "weights must be 8-bit floats, MXFP4, NVFP4, or symmetric integers of 4 or "
                  "8 bits",
                  source, what));
}

/// The strategy, or its default if the config does not name one.
std::string strategy_of(const std::optional<std::string>& said, Index group) {
  if (said) return *said;
  return group > 0 ? "group" : "tensor";
}

Result<QuantFormat> of_8_bits(const ConfigFields& weights, const std::string& strategy, Index group,
                              bool mx, std::string_view source) {
  if (strategy == "tensor") return named("fp8_tensor");
  if (strategy == "channel") return named("fp8_channel");
  QuantFormat f = named("fp8_block");
  if (strategy == "group" && mx && group == named("mxfp8").block_cols) return named("mxfp8");
  if (strategy == "group" && !mx && group > 0) {
    f.block_rows = 1;
    f.block_cols = static_cast<std::int32_t>(group);
    return f;
  }
  if (strategy != "block")
    return unread_scheme(source,
                         fmt::format("strategy {} in groups of {}", as_word(strategy), group));
  const auto block = RESHARD_TRY(weights.indices("block_structure"));
  if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[0] > kMaxBlock ||
      block[1] > kMaxBlock)
    return fail(Code::corrupt,
                fmt::format("{}: quantization_config: block_structure must be two positive "
                            "numbers, rows and columns",
                            source));
  f.block_rows = static_cast<std::int32_t>(block[0]);
  f.block_cols = static_cast<std::int32_t>(block[1]);
  return f;
}

/// Scales in BF16; the files say which dtype they have.
Result<QuantFormat> of_integers(const ConfigFields& weights, const std::string& strategy,
                                Index group, Index bits, const std::string& format,
                                std::string_view source) {
  const bool packed = format == "pack-quantized";
  const bool plain = format == "int-quantized" || format == "naive-quantized";
  const std::string what = fmt::format("int of {} bits as {}", bits, as_word(format));
  if (!(bits == 8 && (packed || plain)) && !(bits == 4 && packed))
    return unread_scheme(source, what);
  const auto order = RESHARD_TRY(weights.text("actorder")).value_or("");
  if (order == "group")
    return unread_scheme(source, what + " whose groups are in another order (actorder)");
  if (strategy != "channel" && (strategy != "group" || group == 0))
    return unread_scheme(source, fmt::format("{} with strategy {}", what, as_word(strategy)));
  QuantFormat f = named("int4_channel");
  if (bits == 8) f.data = packed ? DType::u8 : DType::i8;
  if (strategy != "group") return f;
  // A group fills whole words.
  if (group % packed_together(f) != 0)
    return unread_scheme(source, fmt::format("{} in groups of {}", what, group));
  f.block_cols = static_cast<std::int32_t>(group);
  return f;
}

Result<QuantFormat> of_weights(const ConfigFields& weights, const std::string& format,
                               std::string_view source) {
  const Index bits = RESHARD_TRY(weights.size("num_bits", kMaxBlock));
  const auto type = RESHARD_TRY(weights.text("type")).value_or("int");
  const std::string what = fmt::format("{} of {} bits as {}", as_word(type), bits, as_word(format));
  if (type != "float" && type != "int") return unread_scheme(source, what);
  if (!RESHARD_TRY(weights.boolean("symmetric", true)))
    return unread_scheme(source, "weights that are not symmetric");
  const Index group = RESHARD_TRY(weights.count("group_size", 0, kMaxBlock));
  const std::string strategy = strategy_of(RESHARD_TRY(weights.text("strategy")), group);
  if (type == "int") return of_integers(weights, strategy, group, bits, format, source);
  const bool float8 = format == "float-quantized" || format == "naive-quantized";
  if (bits == 8 && (float8 || format == "mxfp8-quantized"))
    return of_8_bits(weights, strategy, group, !float8, source);
  for (const char* name : {"nvfp4_divisor", "mxfp4"}) {
    const QuantFormat f = named(name);
    const std::string_view packed =
        f.tensor_factor ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
    if (bits == 4 && format == packed && group == f.block_cols) return f;
  }
  return unread_scheme(source, fmt::format("{} in groups of {}", what, group));
}

/// True for a non-empty object or list.
bool says_something(const ConfigFields& config, std::string_view key) {
  const auto object = config.object(key);
  if (!object) return true;  // of another type, so not empty
  return *object && !(*object)->empty();
}

Json text_json(std::string_view text) { return Json(std::string(text)); }

/// The quantisation arguments of weights or of input activations.
Json::Object arguments(const QuantFormat& f, std::string_view strategy, bool dynamic) {
  const bool mx = f.scale == DType::f8_e8m0;
  Json::Object q{{"dynamic", Json(dynamic)}};
  if (strategy == "group" || strategy == "tensor_group")
    q.push_back({"group_size", Json(std::int64_t{f.block_cols})});
  q.push_back({"num_bits", Json(std::int64_t{bits(f.data)})});
  if (mx) q.push_back({"scale_dtype", text_json("torch.uint8")});
  q.push_back({"strategy", text_json(strategy)});
  if (strategy == "block") {
    Json::Array block;
    block.emplace_back(std::int64_t{f.block_rows});
    block.emplace_back(std::int64_t{f.block_cols});
    q.push_back({"block_structure", Json(std::move(block))});
  }
  q.push_back({"symmetric", Json(true)});
  q.push_back({"type", text_json(has_integers(f) ? "int" : "float")});
  return q;
}

struct Words {
  std::string_view format, strategy, activations;  ///< strategies; no activations: not quantised.
};

Words words_of(const QuantFormat& f) {
  const std::string_view strategy = f.block_cols == 0 ? "channel" : "group";
  if (has_packed_integers(f)) return {"pack-quantized", strategy, ""};
  if (has_integers(f)) return {"int-quantized", strategy, f.block_cols == 0 ? "token" : ""};
  if (f.tensor_factor) return {"nvfp4-pack-quantized", "tensor_group", ""};
  if (f.data == DType::f4) return {"mxfp4-pack-quantized", "group", ""};
  if (f.scale == DType::f8_e8m0) return {"mxfp8-quantized", "group", "group"};
  // vLLM loads experts only with these two pairs and with blocks (compressed_tensors_moe_w8a8_fp8).
  if (f.block_rows == 0) return {"float-quantized", "tensor", "tensor"};
  if (f.block_cols == 0) return {"float-quantized", "channel", "token"};
  return {"float-quantized", f.block_rows == 1 ? "group" : "block", "group"};
}

}  // namespace

Result<> check_not_transformed(const ConfigFields& config, std::string_view source) {
  for (const std::string_view key : {"sparsity_config", "transform_config"})
    if (says_something(config, key)) return unread_scheme(source, std::string(key));
  return {};
}

Result<std::vector<QuantFormat>> compressed_tensors_formats(const ConfigFields& config,
                                                            std::string_view source,
                                                            std::size_t most) {
  RESHARD_TRY(check_not_transformed(config, source));
  const auto groups = RESHARD_TRY(config.object(kGroups));
  if (!groups) return config.wrong(fmt::format("has no object '{}'", kGroups));
  const auto usual = RESHARD_TRY(config.text("format")).value_or("unknown");
  std::vector<QuantFormat> found;
  for (const std::string& name : groups->keys()) {
    const auto group = groups->object(name);
    if (!group || !*group)
      return unread_scheme(source, fmt::format("group {} without weights", as_word(name)));
    const auto weights = RESHARD_TRY((*group)->object("weights"));
    if (!weights)
      return unread_scheme(source, fmt::format("group {} without weights", as_word(name)));
    const auto format = RESHARD_TRY((*group)->text("format")).value_or(usual);
    const QuantFormat f = RESHARD_TRY(of_weights(*weights, format, source));
    if (std::ranges::find(found, f) != found.end()) continue;
    if (found.size() == most)
      return unread_scheme(source, fmt::format("{} of more than {} formats", kGroups, most));
    found.push_back(f);
  }
  if (found.empty()) return config.wrong(fmt::format("'{}' is empty", kGroups));
  return found;
}

Json::Object compressed_tensors_object(const QuantFormat& format, bool static_inputs,
                                       const std::vector<std::string>& plain) {
  const Words words = words_of(format);
  Json::Array targets, ignore;
  targets.push_back(text_json("Linear"));
  for (const std::string& name : plain) ignore.emplace_back(name);
  Json activations;
  if (!words.activations.empty())
    activations = Json(arguments(format, words.activations, !static_inputs));
  Json::Object group{{"format", text_json(words.format)},
                     {"input_activations", std::move(activations)},
                     {"output_activations", Json()},
                     {"targets", Json(std::move(targets))},
                     {"weights", Json(arguments(format, words.strategy, false))}};
  return {{std::string(kGroups), Json(Json::Object{{"group_0", Json(std::move(group))}})},
          {"format", text_json(words.format)},
          {"ignore", Json(std::move(ignore))},
          {"kv_cache_scheme", Json()},
          {"quant_method", text_json("compressed-tensors")},
          {"quantization_status", text_json("compressed")}};
}

}  // namespace reshard::hf
