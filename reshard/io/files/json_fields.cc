// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/json_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/closest_name.h"

namespace reshard::files {
Result<Fields> Fields::of(const Json& json, std::string where,
                          std::initializer_list<std::string_view> known) {
  if (json.object() == nullptr)
    return fail(Code::corrupt, fmt::format("{} must be an object, is {}", where, json.describe()));
  for (const auto& member : *json.object()) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    return fail(Code::corrupt,
                fmt::format("{}: unknown key {}{}; known are {}", where, in_quotes(member.key),
                            did_you_mean(member.key, known), fmt::join(known, ", ")));
  }
  return Fields(json, std::move(where));
}

Result<Index> Fields::integer(std::string_view key, Index least, Index most) const {
  const Json* value = json_->find(key);
  const auto number = value ? value->integer() : std::nullopt;
  if (!number || *number < least || *number > most)
    return fail(Code::corrupt, fmt::format("{}: {} must be a whole number from {} to {}, {}",
                                           where_, key, least, most, is_what(value)));
  return *number;
}

Result<double> Fields::number(std::string_view key, double least, double most) const {
  const Json* value = json_->find(key);
  const auto number = value ? value->number() : std::nullopt;
  if (!number || !(*number >= least && *number <= most))
    return fail(Code::corrupt, fmt::format("{}: {} must be a number from {} to {}, {}", where_, key,
                                           least, most, is_what(value)));
  return *number;
}

Result<bool> Fields::flag_or(std::string_view key, bool otherwise) const {
  const Json* value = json_->find(key);
  if (value == nullptr) return otherwise;
  if (value->boolean() == nullptr)
    return fail(Code::corrupt,
                fmt::format("{}: {} must be true or false, {}", where_, key, is_what(value)));
  return *value->boolean();
}

Result<Fields> Fields::object(std::string_view key,
                              std::initializer_list<std::string_view> known) const {
  static const Json empty(Json::Object{});
  const Json* value = json_->find(key);
  return of(value ? *value : empty, fmt::format("{}: {}", where_, key), known);
}

Result<std::string> Fields::text(std::string_view key) const {
  const Json* value = json_->find(key);
  if (value == nullptr || value->string() == nullptr || value->string()->empty() ||
      value->string()->size() > kMaxFieldText)
    return fail(Code::corrupt, fmt::format("{}: {} must be a string of 1 to {} characters, {}",
                                           where_, key, kMaxFieldText, is_what(value)));
  return *value->string();
}

Result<std::size_t> Fields::word(std::string_view key,
                                 std::initializer_list<std::string_view> words) const {
  if (!has(key)) return std::size_t{0};
  const Json* value = json_->find(key);
  const auto at =
      value->string() ? std::find(words.begin(), words.end(), *value->string()) : words.end();
  if (at == words.end())
    return fail(Code::corrupt, fmt::format("{}: {} must be one of {}, {}", where_, key,
                                           fmt::join(words, ", "), is_what(value)));
  return static_cast<std::size_t>(at - words.begin());
}

Result<Json::Array> Fields::list(std::string_view key, std::size_t most) const {
  const Json* value = json_->find(key);
  if (value == nullptr) return Json::Array{};
  if (value->array() == nullptr)
    return fail(Code::corrupt,
                fmt::format("{}: {} must be a list, {}", where_, key, is_what(value)));
  if (value->array()->size() > most)
    return fail(Code::corrupt, fmt::format("{}: {} has {} entries, at most {} are allowed", where_,
                                           key, value->array()->size(), most));
  return *value->array();
}

}  // namespace reshard::files
