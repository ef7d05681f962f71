// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/config_fields.h"

#include <fmt/format.h>

#include <cmath>

namespace reshard::hf {

Result<ConfigFields> ConfigFields::parse(std::string_view text, std::string_view source) {
  auto json = parse_json(text, {.non_finite = true});
  if (!json) return tl::unexpected(std::move(json).error().in(source));
  ConfigFields fields;
  fields.source_ = source;
  if (json->object() == nullptr)
    return fields.wrong(fmt::format("must be an object, is {}", json->describe()));
  fields.json_ = *std::move(json);
  return fields;
}

const Json* ConfigFields::find(std::string_view key) const {
  const Json* value = json_.find(key);
  return value != nullptr && value->is_null() ? nullptr : value;
}

Result<Index> ConfigFields::size(std::string_view key, Index max) const {
  const auto value = RESHARD_TRY(optional_size(key, max));
  if (!value) return wrong(fmt::format("{} is missing, must be a positive integer", key));
  return *value;
}

Result<std::optional<Index>> ConfigFields::optional_size(std::string_view key, Index max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto size = value->integer();
  if (!size || *size < 1)
    return wrong(fmt::format("{} must be a positive integer, is {}", key, value->describe()));
  if (*size > max) return wrong(fmt::format("{} must be at most {}, is {}", key, max, *size));
  return *size;
}

Result<Index> ConfigFields::count(std::string_view key, Index otherwise, Index max) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  const auto count = value->integer();
  if (!count || *count < 0)
    return wrong(fmt::format("{} must be an integer from 0, is {}", key, value->describe()));
  if (*count > max) return wrong(fmt::format("{} must be at most {}, is {}", key, max, *count));
  return *count;
}

Result<std::optional<Index>> ConfigFields::integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto integer = value->integer();
  if (!integer) return wrong(fmt::format("{} must be an integer, is {}", key, value->describe()));
  return *integer;
}

Result<std::optional<double>> ConfigFields::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = value->number();
  if (!number || !std::isfinite(*number))
    return wrong(fmt::format("{} must be a number, is {}", key, value->describe()));
  return *number;
}

Result<bool> ConfigFields::boolean(std::string_view key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->boolean() == nullptr)
    return wrong(fmt::format("{} must be true or false, is {}", key, value->describe()));
  return *value->boolean();
}

Result<std::optional<std::string>> ConfigFields::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->string() == nullptr)
    return wrong(fmt::format("{} must be a string, is {}", key, value->describe()));
  return *value->string();
}

Result<std::optional<std::string>> ConfigFields::first_text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array() == nullptr)
    return wrong(fmt::format("{} must be a list of strings, is {}", key, value->describe()));
  if (value->array()->empty()) return std::nullopt;
  const Json& first = value->array()->front();
  if (first.string() == nullptr)
    return wrong(
        fmt::format("{} must be a list of strings, its first entry is {}", key, first.describe()));
  return *first.string();
}

Result<std::optional<std::vector<std::string>>> ConfigFields::texts(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array() == nullptr)
    return wrong(fmt::format("{} must be a list of strings, is {}", key, value->describe()));
  std::vector<std::string> result;
  for (const Json& entry : *value->array()) {
    if (entry.string() == nullptr)
      return wrong(fmt::format("{} must be a list of strings, one is {}", key, entry.describe()));
    result.push_back(*entry.string());
  }
  return result;
}

Result<std::optional<ConfigFields>> ConfigFields::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->object() == nullptr)
    return wrong(fmt::format("{} must be an object, is {}", key, value->describe()));
  ConfigFields fields;
  fields.json_ = *value;
  fields.source_ = fmt::format("{}: {}", source_, key);
  return fields;
}

Result<std::vector<Index>> ConfigFields::indices(std::string_view key) const {
  std::vector<Index> result;
  const Json* value = find(key);
  if (value == nullptr) return result;
  if (value->array() == nullptr)
    return wrong(fmt::format("{} must be a list of integers, is {}", key, value->describe()));
  for (const Json& entry : *value->array()) {
    const auto index = entry.integer();
    if (!index || *index < 0 || *index > kMaxSize)
      return wrong(
          fmt::format("{} must be a list of integers from 0, one is {}", key, entry.describe()));
    result.push_back(*index);
  }
  return result;
}

std::vector<std::string> ConfigFields::keys() const {
  std::vector<std::string> keys;
  if (json_.object() == nullptr) return keys;
  for (const Json::Member& member : *json_.object()) keys.push_back(member.key);
  return keys;
}

tl::unexpected<Error> ConfigFields::wrong(std::string_view what) const {
  return fail(Code::corrupt, fmt::format("{}: {}", source_, what));
}

tl::unexpected<Error> ConfigFields::unsupported(std::string_view what) const {
  return fail(Code::unsupported, fmt::format("{}: {}", source_, what));
}

}  // namespace reshard::hf
