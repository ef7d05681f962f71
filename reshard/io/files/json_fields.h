// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/io/files/json.h"

namespace reshard::files {

/// The largest number of characters of a string in a layout file.
inline constexpr std::size_t kMaxFieldText = 512;

/// Typed access to one JSON object of a layout or cluster file. Errors are
/// Code::corrupt and begin with `where`. Borrows the object.
class Fields {
 public:
  /// Errors: `json` is not an object, or has a key that is not in `known`.
  static Result<Fields> of(const Json& json, std::string where,
                           std::initializer_list<std::string_view> known);

  const std::string& where() const { return where_; }
  /// The value, or null.
  const Json* find(std::string_view key) const { return json_->find(key); }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// An integer from `least` to `most`.
  Result<Index> integer(std::string_view key, Index least, Index most) const;
  Result<Index> integer_or(std::string_view key, Index otherwise, Index least, Index most) const {
    return has(key) ? integer(key, least, most) : Result<Index>(otherwise);
  }
  /// A number from `least` to `most`, with or without a fraction.
  Result<double> number(std::string_view key, double least, double most) const;
  Result<double> number_or(std::string_view key, double otherwise, double least,
                           double most) const {
    return has(key) ? number(key, least, most) : Result<double>(otherwise);
  }
  Result<bool> flag_or(std::string_view key, bool otherwise) const;
  /// The fields of a nested object, whose place in messages is "where: key"; those of an empty
  /// object if the key is absent.
  Result<Fields> object(std::string_view key, std::initializer_list<std::string_view> known) const;
  /// A string of 1 to kMaxFieldText characters.
  Result<std::string> text(std::string_view key) const;
  /// The index of the value in `words`; 0 if the key is absent.
  Result<std::size_t> word(std::string_view key,
                           std::initializer_list<std::string_view> words) const;
  /// A list of at most `most` entries; empty if the key is absent.
  Result<Json::Array> list(std::string_view key, std::size_t most) const;

 private:
  Fields(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  const Json* json_;
  std::string where_;
};

}  // namespace reshard::files
