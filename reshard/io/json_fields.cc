// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/json_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard {
namespace {

template <class... Args>
tl::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::corrupt, fmt::format(format, std::forward<Args>(args)...));
}

std::string describe(const Json* value) { return value ? "is " + value->describe() : "is missing"; }

}  // namespace

Result<Fields> Fields::of(const Json& json, std::string where,
                          std::initializer_list<std::string_view> known) {
  if (json.object() == nullptr)
    return corrupt("{} must be an object, is {}", where, json.describe());
  for (const auto& member : *json.object()) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    return corrupt("{}: unknown key {}; known are {}", where, in_quotes(member.key),
                   fmt::join(known, ", "));
  }
  return Fields(json, std::move(where));
}

Result<Index> Fields::integer(std::string_view key, Index least, Index most) const {
  const Json* value = json_->find(key);
  const auto number = value ? value->integer() : std::nullopt;
  if (!number || *number < least || *number > most)
    return corrupt("{}: {} must be a whole number from {} to {}, {}", where_, key, least, most,
                   describe(value));
  return *number;
}

Result<std::string> Fields::text(std::string_view key) const {
  const Json* value = json_->find(key);
  if (value == nullptr || value->string() == nullptr || value->string()->empty() ||
      value->string()->size() > kMaxFieldText)
    return corrupt("{}: {} must be a text of 1 to {} characters, {}", where_, key, kMaxFieldText,
                   describe(value));
  return *value->string();
}

Result<std::size_t> Fields::word(std::string_view key,
                                 std::initializer_list<std::string_view> words) const {
  if (!has(key)) return std::size_t{0};
  const Json* value = json_->find(key);
  const auto at =
      value->string() ? std::find(words.begin(), words.end(), *value->string()) : words.end();
  if (at == words.end())
    return corrupt("{}: {} must be one of {}, {}", where_, key, fmt::join(words, ", "),
                   describe(value));
  return static_cast<std::size_t>(at - words.begin());
}

Result<Json::Array> Fields::list(std::string_view key, std::size_t most) const {
  const Json* value = json_->find(key);
  if (value == nullptr) return Json::Array{};
  if (value->array() == nullptr)
    return corrupt("{}: {} must be a list, {}", where_, key, describe(value));
  if (value->array()->size() > most)
    return corrupt("{}: {} has {} entries, at most {} are allowed", where_, key,
                   value->array()->size(), most);
  return *value->array();
}

}  // namespace reshard
