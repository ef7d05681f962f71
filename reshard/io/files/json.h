// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// A JSON value as written in the text. Used by the rooms that read files; not a public interface.
///
/// Objects keep the order of the text and have no duplicate keys. Integers that fit keep all 64
/// bits; every other number keeps its spelling, so that writing a value back does not change it.
class Json {
 public:
  struct Member;
  struct Number {
    /// The text of a number with fraction or exponent or over 64 bits; or NaN, Infinity, -Infinity.
    std::string spelling;
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
  /// The value if it is an integer that fits in int64.
  std::optional<std::int64_t> integer() const;
  /// The value if it is a number, rounded to the nearest double; none beyond the range of doubles.
  /// Not finite if the text says so.
  std::optional<double> number() const;
  /// The member with that key, or null; null if this is not an object. Linear in the members.
  const Json* find(std::string_view key) const;

  /// The value as JSON text: on one line, or `pretty`, indented by two spaces with one value per
  /// line.
  std::string dump(bool pretty = false) const;
  /// For error messages: the value on one line, shortened; "an object" or "a list" for those.
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

/// For error messages: "is " and the value's description, or "is missing" for null.
std::string is_what(const Json* value);

/// Limits of parse_json. It uses at most about 100 bytes of memory per value, plus the text.
struct JsonLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t values = std::size_t{4} << 20;
  int depth = 64;
  /// NaN, Infinity and -Infinity are numbers, as in what Python's json writes; in JSON they are
  /// not.
  bool non_finite = false;
};

/// Parses one JSON value. `text` must be UTF-8 without NUL, contain nothing after the value, stay
/// within `limits`, and have no duplicate keys. Errors are Code::corrupt and name the line and
/// column (counted from 1; the byte from 0 if the text has one line), but not the file.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// Takes a member of an object that is being parsed.
using JsonMember = std::function<void(std::string key, Json value)>;
/// Parses one object and hands its members on in their order, without keeping them. Those before an
/// error are handed on, too. Limits and errors as of parse_json().
Result<> parse_json_members(std::string_view text, const JsonLimits& limits,
                            const JsonMember& take);

/// The content of a text file of at most `max_bytes` bytes. Errors name the path.
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

/// Creates a text file. Errors name the path: it exists; its folder does not; the disk. Leaves no
/// file on error.
Result<> write_new_text_file(const std::string& path, std::string_view text);

/// `text` as a JSON string, with quotation marks, on one line. Escapes control characters and
/// replaces invalid UTF-8.
std::string json_quote(std::string_view text);

/// json_quote() for error messages: cut after about 100 characters.
std::string in_quotes(std::string_view text);
/// For error messages, a text that somebody else wrote: unchanged if it is a short word of letters,
/// digits, '-', '_' and '.', otherwise in_quotes().
std::string as_word(std::string_view text);

}  // namespace reshard
