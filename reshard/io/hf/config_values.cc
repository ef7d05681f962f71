// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/config_values.h"

#include "reshard/io/files/json.h"

namespace reshard::hf {
namespace {

constexpr std::size_t kMaxConfig = std::size_t{16} << 20;
constexpr int kMaxDepth = 4;

void collect(const Json& json, const std::string& prefix, int depth, ConfigValues& out) {
  if (json.object() == nullptr || depth > kMaxDepth) return;
  for (const Json::Member& m : *json.object()) {
    const std::string name = prefix + m.key;
    if (const auto number = m.value.integer()) out.numbers.emplace(name, *number);
    if (const bool* flag = m.value.boolean()) out.numbers.emplace(name, *flag ? 1 : 0);
    collect(m.value, name + ".", depth + 1, out);
  }
}

std::optional<DType> dtype_in(const Json* json) {
  if (json == nullptr) return std::nullopt;
  for (const char* key : {"dtype", "torch_dtype"})
    if (const Json* said = json->find(key); said != nullptr && said->string() != nullptr)
      if (const auto dtype = dtype_from_torch_name(*said->string())) return dtype;
  return std::nullopt;
}

}  // namespace

Result<ConfigValues> parse_config_values(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text, {.bytes = kMaxConfig, .non_finite = true}));
  ConfigValues out;
  collect(json, "", 1, out);
  if (const Json* type = json.find("model_type"); type != nullptr && type->string() != nullptr)
    out.model_type = *type->string();
  if (const Json* named = json.find("architectures"); named != nullptr && named->array() != nullptr)
    for (const Json& one : *named->array())
      if (one.string() != nullptr) out.architectures.push_back(*one.string());
  out.dtype = dtype_in(&json);
  if (!out.dtype) out.dtype = dtype_in(json.find("text_config"));
  return out;
}

Result<ConfigValues> read_config_values(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxConfig));
  auto values = parse_config_values(text);
  if (!values) return tl::unexpected(std::move(values).error().in(path));
  return values;
}

}  // namespace reshard::hf
