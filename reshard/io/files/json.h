// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// A JSON value as it stood in the text. Internal to the rooms that read files; not a public
/// format.
///
/// Objects keep the order of the text and have no two equal keys. Integers that fit keep all 64
/// bits; every other number keeps its spelling, so that writing a value back changes nothing in it.
class Json {
 public:
  struct Member;
  struct Number {
    std::string spelling;  ///< of a number with a fraction or exponent, or beyond 64 bits.
  };
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json() = default;
  template <class T>
  explicit Json(T value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  Array* array() { return std::get_if<Array>(&value_); }
  Object* object() { return std::get_if<Object>(&value_); }
  /// The integer, when it is one and fits.
  std::optional<std::int64_t> integer() const;
  /// The member of that key, or null; linear in the members. Null when this is no object.
  const Json* find(std::string_view key) const;

  /// The value as JSON text: on one line, or with two spaces per level and each value on its own
  /// line.
  std::string dump(bool pretty = false) const;
  /// For a message: the value on one line, shortened, or "an object" / "a list" when it is one.
  std::string describe() const;

 private:
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, Number, std::string, Array,
               Object>
      value_;
};

struct Json::Member {
  std::string key;
  Json value;
};

/// For a message: "is " and the value's description, or "is missing".
std::string is_what(const Json* value);

/// What parse_json accepts at most. Memory used is at most about 100 bytes per value plus the text.
struct JsonLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t values = std::size_t{4} << 20;
  int depth = 64;
};

/// The value of `text`, checked: UTF-8 without NUL, one JSON value and nothing after it, within
/// `limits`, no key twice in an object. Errors are Code::corrupt, name the byte (from 0) and do not
/// name the file.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// The content of a text file of at most `max_bytes`; errors name the path.
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

/// `text` as a JSON string with its quotation marks: one line, control characters escaped. Bytes
/// that are not UTF-8 are replaced.
std::string json_quote(std::string_view text);

/// `text` quoted for an error message: as json_quote, cut after about 100 characters.
std::string in_quotes(std::string_view text);

}  // namespace reshard
