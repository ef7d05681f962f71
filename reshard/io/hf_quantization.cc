// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf_quantization.h"

#include <fmt/format.h>

#include "reshard/io/config_fields.h"
#include "reshard/io/hf_config.h"
#include "reshard/io/json_util.h"

namespace reshard {
namespace {

constexpr std::string_view kKey = "quantization_config", kBlock = "weight_block_size";

tl::unexpected<Error> unread(std::string_view source, const std::string& what) {
  return fail(Code::unsupported,
              fmt::format("{}: {}: {} is not read; quant_method fp8 of e4m3 is, with a {} or one "
                          "scale per weight",
                          source, kKey, what, kBlock));
}

bool is_fp8(const QuantFormat& f) {
  return f.data == DType::f8_e4m3 && f.scale == DType::f32 && !f.tensor_factor &&
         (f.block_rows > 0) == (f.block_cols > 0);
}

}  // namespace

Result<QuantFormat> quantised_format(std::string_view text, std::string_view source) {
  const auto config = RESHARD_TRY(ConfigFields::parse(text, source));
  const auto q = RESHARD_TRY(config.object(kKey));
  if (!q) return unread(source, "none");
  const auto method = RESHARD_TRY(q->text("quant_method")).value_or("unknown");
  if (method != "fp8") return unread(source, "quant_method " + method);
  const auto numbers = RESHARD_TRY(q->text("fmt")).value_or("e4m3");
  if (numbers != "e4m3") return unread(source, "fmt " + numbers);
  QuantFormat f{.data = DType::f8_e4m3,
                .scale = DType::f32,
                .block_rows = 0,
                .block_cols = 0,
                .rule = ScaleRule::exact};
  if (!q->has(kBlock)) return f;
  const auto block = RESHARD_TRY(q->indices(kBlock));
  constexpr Index kMost = 1 << 20;
  if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[0] > kMost || block[1] > kMost)
    return fail(Code::corrupt,
                fmt::format("{}: {}: {} must be two positive numbers, rows and columns", source,
                            kKey, kBlock));
  f.block_rows = static_cast<std::int32_t>(block[0]);
  f.block_cols = static_cast<std::int32_t>(block[1]);
  const auto scales = RESHARD_TRY(q->text("scale_fmt")).value_or("");
  if (scales == "ue8m0") f.rule = ScaleRule::up;
  return f;
}

Result<std::string> config_of_quantised_weights(std::string_view text, const QuantFormat& format,
                                                const std::vector<std::string>& plain,
                                                std::string_view source) {
  if (!is_fp8(format)) return unread(source, to_string(format));
  const std::string without = RESHARD_TRY(config_of_plain_weights(text, source));
  auto fields = RESHARD_TRY(ConfigFields::parse(without, source));
  Json::Object q{{"activation_scheme", Json(std::string("dynamic"))},
                 {"fmt", Json(std::string("e4m3"))}};
  Json::Array modules;
  for (const std::string& name : plain) modules.emplace_back(name);
  if (!modules.empty()) q.push_back({"modules_to_not_convert", Json(std::move(modules))});
  q.push_back({"quant_method", Json(std::string("fp8"))});
  if (format.rule != ScaleRule::exact) q.push_back({"scale_fmt", Json(std::string("ue8m0"))});
  if (format.block_rows > 0) {
    Json::Array block;
    block.emplace_back(std::int64_t{format.block_rows});
    block.emplace_back(std::int64_t{format.block_cols});
    q.push_back({std::string(kBlock), Json(std::move(block))});
  }
  Json json = std::move(fields).take();
  json.object()->push_back({std::string(kKey), Json(std::move(q))});
  return json.dump(true) + "\n";
}

}  // namespace reshard
